"""Keys that nobody has listed, coded by their beginnings, so that popular ones can be found piece by piece.

A key is a row of symbols: the bytes of its UTF-8 text, or characters of a declared alphabet. Its *id* is the key
itself, read as a number: one digit per symbol, 0 where the key has ended. So the id of every beginning (*prefix*) of a
key follows from the key's id by a division, and a key can be read back from its id.

Every report is made for one *stage*, which its public seed chooses, together with one of several independent code
*maps*. At stage l a key is coded by the symbols of the first l levels only. The stage after the last level codes whole
keys once more: the people who are asked there take no part in the search, and estimates of what was found come from
them. Keys of one record that share a prefix have one code at that stage, so they fall into one bucket and count once.

Privacy: stage and map are functions of the public seed, which is drawn without a look at the record. Under a fixed
seed, this is one map from keys to codes like any other, and the guarantee of the mechanisms that take such keys holds
for every map from keys to buckets. Hence the level costs nothing, and neither does what is cut off or left out: the
record that is randomized is a function of the person's record alone.

A key of more than `longest` symbols is cut: its first `longest` - 1 symbols and a mark, which no symbol equals.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import islice, product
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from hubbub.primitives.arrays import Bools, Int64s, UInt64s
from hubbub.primitives.kernel import kernel, use_compiled
from hubbub.primitives.siphash import TREE, derive_all, mix

#: The top bit of an id: the key stands for a negative value (mechanisms with two-sided keys).
SIDE = np.uint64(1 << 63)
#: What is written behind a key that was cut.
CUT = "…"
_Count = Annotated[int, Field(ge=1, le=1000)]


_ONE = np.uint64(1)


@kernel
def map_code(prefix: Any, first: Any, second: Any, codes: Any) -> Any:
    """The code of a prefix in the map that two words make: 1 .. `codes`."""
    return mix(mix(prefix + first) + second) % codes + _ONE


@kernel
def _entry_codes(
    ids: Any, cohort: Any, mask: Any, divisor: Any, first: Any, second: Any, codes: Any, found: Any
) -> None:
    for i in range(len(ids)):
        which = cohort[i]
        prefix = (ids[i] & mask[which]) // divisor[which]
        found[i] = map_code(prefix, first[which], second[which], codes)


class Tree(BaseModel):
    """How keys are cut into pieces, and how many people are asked about each length."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    longest: int = Field(
        ge=2, le=62, description="symbols of a key that count; longer keys are cut and marked"
    )
    levels: tuple[_Count, ...] = Field(min_length=1, description="symbols that each level adds")
    shares: tuple[_Count, ...] = Field(
        description="people per level, as whole numbers, and last those for the estimates"
    )
    maps: int = Field(default=3, ge=2, le=8, description="independent code maps per level")
    alphabet: str = Field(default="", description="the symbols of keys; empty: the bytes of their UTF-8 text")
    replacement: str = Field(
        default="", description="symbol for those outside the alphabet; empty: such keys are left out"
    )
    starts: tuple[str, ...] = Field(
        default=(), description="only keys that begin with one of these count, by what follows"
    )

    @model_validator(mode="after")
    def _check(self) -> Tree:
        if sum(self.levels) != self.longest:
            raise ValueError(
                f"the levels add up to {sum(self.levels)} symbols, and the longest key has {self.longest}"
            )
        if len(self.shares) != len(self.levels) + 1:
            raise ValueError(
                f"{len(self.levels)} levels need {len(self.levels) + 1} shares: one each, and one for the estimates"
            )
        if self.stages * self.maps > 64:
            raise ValueError(
                f"{self.stages} stages of {self.maps} maps are more than 64: take fewer levels or maps"
            )
        if len(set(self.alphabet)) != len(self.alphabet):
            twice = next(symbol for symbol in self.alphabet if self.alphabet.count(symbol) > 1)
            raise ValueError(f"the alphabet has {twice!r} twice")
        if self.alphabet and (len(self.alphabet) < 2 or not _is_text(self.alphabet)):
            raise ValueError("an alphabet has at least two symbols, all of them text that can be encoded")
        if self.replacement and (len(self.replacement) != 1 or self.replacement not in self.alphabet):
            raise ValueError("the replacement must be one symbol of the alphabet")
        if self.starts and (len(set(self.starts)) != len(self.starts) or not all(map(_is_text, self.starts))):
            raise ValueError("the beginnings must be different, not empty, and text that can be encoded")
        if max(1, len(self.starts)) * self.base**self.longest > 1 << 63:
            raise ValueError(
                f"keys of {self.longest} symbols out of {self.base - 2} do not fit into 63 bits: at most "
                f"{self.most_symbols(self.base, len(self.starts))} do; longer keys are found in rounds"
            )
        return self

    @staticmethod
    def most_symbols(base: int, starts: int = 1) -> int:
        """The most symbols that an id has room for."""
        room, count = (1 << 63) // max(1, starts), 0
        while room >= base:
            room, count = room // base, count + 1
        return count

    def words(self) -> str:
        """In a few words: what counts of a key, and who is asked about how much of it."""
        what = f"symbols out of {len(self.alphabet)}" if self.alphabet else "bytes"
        after = f" after one of {len(self.starts):,} beginnings" if self.starts else ""
        parts = [f"{100 * share / sum(self.shares):.3g}%" for share in self.shares]
        asked = [
            f"{part} of the people are asked for the first {length}" if place == 0 else f"{part} for {length}"
            for place, (part, length) in enumerate(zip(parts, self.lengths[:-1], strict=False))
        ]
        return f"up to {self.longest} {what}{after}; {', '.join(asked)}; {parts[-1]} for the estimates"

    # Symbols

    @property
    def base(self) -> int:
        """Digits: one per symbol, 0 for the end, the largest for what was cut off.

        UTF-8 has neither the byte 255 nor, but for the character of that number, 0: keys with it are left out.
        """
        return len(self.alphabet) + 2 if self.alphabet else 256

    @cached_property
    def _digits(self) -> dict[str, int]:
        return {symbol: digit for digit, symbol in enumerate(self.alphabet, start=1)}

    def id_of(self, key: str) -> int:
        """The key as a number, or -1 if it has no place here: empty, not text, or with symbols from elsewhere."""
        start, rest = self._split(key)
        if start < 0:
            return -1
        digits = self._symbols(rest)
        if digits is None or not (digits or self.starts):
            return -1
        if len(digits) > self.longest:
            digits = [*digits[: self.longest - 1], self.base - 1]
        return start * self._room + self._number(digits)

    def _split(self, key: str) -> tuple[int, str]:
        """The place of the longest beginning that the key has (-1: none), and what follows it."""
        if not self.starts:
            return 0, key
        for length in self._start_lengths:
            place = self._start_places.get(key[:length])
            if place is not None:
                return place, key[length:]
        return -1, key

    @cached_property
    def _start_places(self) -> dict[str, int]:
        return {start: place for place, start in enumerate(self.starts)}

    @cached_property
    def _start_lengths(self) -> list[int]:
        return sorted({len(start) for start in self.starts}, reverse=True)

    def _symbols(self, text: str) -> Sequence[int] | None:
        """The digits of a text, or None where it has none."""
        if not self.alphabet:
            try:
                raw = text.encode()
            except UnicodeEncodeError:
                return None
            return None if 0 in raw else raw
        other = self._digits.get(self.replacement, 0)
        digits = [self._digits.get(symbol, other) for symbol in text]
        return None if 0 in digits else digits

    def _number(self, digits: Sequence[int]) -> int:
        if not self.alphabet:
            return int.from_bytes(bytes(digits).ljust(self.longest, b"\0"), "big")
        number = 0
        for digit in digits:
            number = number * self.base + digit
        return int(number * self.base ** (self.longest - len(digits)))

    @cached_property
    def _room(self) -> int:
        """How many numbers there are behind one beginning."""
        return int(self.base**self.longest)

    def mark_ids(self) -> UInt64s:
        """Ids of two keys that nobody can have, because they begin with the mark of what was cut off."""
        first = (self.base - 1) * self.base ** (self.longest - 1)
        return np.array([first + 1, first + 2], dtype=np.uint64)

    def named(self, number: int, length: int | None = None) -> tuple[str, bool]:
        """The key (or, with a length, the prefix of so many symbols) that a number stands for; whether it was cut."""
        digits, number = [], int(number)
        for _ in range(self.longest if length is None else length):
            number, digit = divmod(number, self.base)
            digits.append(digit)
        start = self.starts[number] if self.starts else ""
        symbols = [digit for digit in reversed(digits) if digit]
        cut = bool(symbols) and symbols[-1] == self.base - 1
        symbols = symbols[:-1] if cut else symbols
        if self.alphabet:
            return start + "".join(self.alphabet[digit - 1] for digit in symbols), cut
        return start + bytes(symbols).decode(errors="ignore"), cut

    def name_of(self, number: int) -> str:
        """The key that a number stands for, with a mark behind it if it was cut."""
        text, cut = self.named(number)
        return f"{text}{CUT}" if cut else text

    def some_keys(self, most: int) -> list[str]:
        """Up to so many different keys that have a place here; they differ in their first symbols first."""
        symbols, start = self.alphabet or string.ascii_lowercase, self.starts[0] if self.starts else ""
        length = next(n for n in range(1, self.longest + 1) if n == self.longest or len(symbols) ** n >= most)
        endings = islice(product(symbols, repeat=length), most)
        return [start + "".join(reversed(ending)) for ending in endings]

    # Stages and codes

    @property
    def stages(self) -> int:
        """The levels, and the estimates."""
        return len(self.levels) + 1

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Symbols that are coded at every stage."""
        return (*np.cumsum(self.levels).tolist(), self.longest)

    def cohorts_of(self, stage: int) -> range:
        """The code maps of a stage, by their numbers among all."""
        return range(stage * self.maps, (stage + 1) * self.maps)

    @cached_property
    def slots(self) -> UInt64s:
        """Which code map the seeds use whose remainder is 0, 1, ...: the maps of a stage get its share, equally."""
        stage = np.repeat(np.arange(self.stages), self.shares)
        return np.asarray((stage[:, None] * self.maps + np.arange(self.maps)).reshape(-1), dtype=np.uint64)

    def cohort_of(self, seeds: UInt64s) -> UInt64s:
        """The code map that each seed uses."""
        return np.asarray(self.slots[seeds % np.uint64(len(self.slots))])

    @cached_property
    def _to_prefix(self) -> tuple[UInt64s, UInt64s]:
        """A mask and a divisor per code map that take the id of a key to that of its prefix."""
        each = [self.base ** (self.longest - length) for length in self.lengths]
        masks = [~SIDE] * len(self.levels) + [~np.uint64(0)]
        return np.repeat(np.array(masks), self.maps), np.repeat(np.array(each, dtype=np.uint64), self.maps)

    def codes(self, ids: UInt64s, cohort: UInt64s, salt: int, bits: int) -> UInt64s:
        """The non-zero codes of keys under code maps (one, or one per id); sides count in the estimates alone."""
        mask, divisor = self._to_prefix
        if use_compiled(len(ids)) and cohort.ndim:
            found = np.empty(len(ids), dtype=np.uint64)
            maps = (mask, divisor, *self.map_words(salt))
            _entry_codes.compiled()(ids, cohort.astype(np.int64), *maps, np.uint64((1 << bits) - 1), found)
            return found
        if len(ids) and ids.max() >= SIDE:
            ids = ids & mask[cohort]
        return self.prefix_codes(ids // divisor[cohort], cohort, salt, bits)

    def prefix_codes(self, prefixes: UInt64s, cohort: UInt64s | int, salt: int, bits: int) -> UInt64s:
        """The same for numbers of prefixes that have the length of their stage."""
        first, second = self.map_words(salt)
        return np.asarray(map_code(prefixes, first[cohort], second[cohort], np.uint64((1 << bits) - 1)))

    def map_words(self, salt: int) -> tuple[UInt64s, UInt64s]:
        """Two public words per code map, which make it."""
        return _map_words(salt, self.stages * self.maps)

    # Candidates

    def pieces(self, level: int) -> tuple[Int64s, ...]:
        """What can follow a prefix at a level, as numbers: by how many bytes its last character still lacks.

        After the end comes the end; the mark of what was cut off stands at the last place alone; bytes are those of
        UTF-8. What nobody's key can be is no candidate.
        """
        count, last = self.levels[level], level == len(self.levels) - 1
        lacks = range(1) if self.alphabet else range(4)
        return tuple(self._pieces_after(lack, count, last, first=level == 0) for lack in lacks)

    @cached_property
    def piece_counts(self) -> tuple[int, ...]:
        """How many pieces can follow whole characters, level by level."""
        return tuple(len(self.pieces(level)[0]) for level in range(len(self.levels)))

    def _pieces_after(self, lack: int, count: int, last: bool, first: bool) -> Int64s:
        numbers, lacking, ended = np.zeros(1, np.int64), np.array([lack]), np.zeros(1, bool)
        digits = np.arange(self.base)
        follow, lead = self._byte_classes
        for place in range(count):
            may_end = not (first and place == 0 and not self.starts)
            may_mark = last and place == count - 1
            stop, mark = digits == 0, digits == self.base - 1
            inside = ~ended[:, None] & ~stop & ~mark & np.where(lacking[:, None] > 0, follow, lead >= 0)
            done = stop & (ended | ((lacking == 0) & may_end))[:, None]
            cut = mark & ~ended[:, None] & may_mark
            row, digit = np.nonzero(inside | done | cut)
            owed = np.where(lacking[row] > 0, lacking[row] - 1, np.maximum(lead[digit], 0))
            ended = ended[row] | (digit == 0) | (digit == self.base - 1)
            numbers, lacking = numbers[row] * self.base + digit, np.where(ended, 0, owed)
        return numbers

    @cached_property
    def _byte_classes(self) -> tuple[Bools, Int64s]:
        """Which digits continue a character, and how many more bytes a digit that begins one takes (-1: it cannot)."""
        digits = np.arange(self.base)
        if self.alphabet:
            return np.zeros(self.base, bool), np.zeros(self.base, np.int64)
        lead = np.full(256, -1)
        lead[1:0x80] = 0
        lead[0xC2:0xE0], lead[0xE0:0xF0], lead[0xF0:0xF5] = 1, 2, 3
        return (digits >= 0x80) & (digits < 0xC0), lead

    def lacking(self, prefixes: UInt64s, length: int) -> Int64s:
        """How many bytes the last character of each prefix still lacks; -1 where the key has ended."""
        last = (prefixes % np.uint64(self.base)).astype(np.int64)
        found = np.zeros(len(prefixes), dtype=np.int64)
        if not self.alphabet:
            lead = self._byte_classes[1]
            for back in range(min(3, length)):
                digit = (prefixes // np.uint64(256**back) % np.uint64(256)).astype(np.int64)
                found = np.maximum(found, lead[digit] - back)
        return np.where((last == 0) | (last == self.base - 1), -1, found)


@lru_cache(maxsize=64)
def _map_words(salt: int, maps: int) -> tuple[UInt64s, UInt64s]:
    """Two public words per code map."""
    words = derive_all(salt, range(TREE, TREE + 2), np.arange(maps, dtype=np.uint64))
    return words[:, 0], words[:, 1]


def _is_text(text: str) -> bool:
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False
