"""From what the user calls a key to its public code.

A key first gets a 64-bit *id*: its place in a closed vocabulary, or a keyed hash (SipHash-2-4 under
the task's public salt) when the vocabulary is open. From the id follow its Walsh *code*, a non-zero
number of `bits` bits, and its public *sign*. Codes are public and deterministic; no guarantee of the
walsh family rests on them.

- closed: a permutation of the code space, so no two keys share a code.
- folded: hashed into at most 30 bits; keys that collide in one code are summed, `alias_odds` says how likely.
- wide: 64-bit codes; no aliasing, no table of all keys, estimates are made key by key.
- tree: open, and coded by beginnings, so that popular keys can be found: see `hubbub.model.tree`.

Cohorts are independent code maps, one per value of (seed mod cohorts): they average out the accident
of two heavy keys having unlucky codes.

With `count_lengths` there are two more keys, which nobody can name: a device puts one of them into a record that it
had to sample down (see `hubbub.model.record.sample_down`).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from hubbub.model.tree import SIDE, Tree
from hubbub.primitives.arrays import Bools, Int64s, UInt64s
from hubbub.primitives.errors import Refused
from hubbub.primitives.siphash import COHORT, ROUND, SIGN, derive, derive_all, mix, siphash, siphash_many

_SIDE = 0x5DEECE66D1CE4E5B
#: Closed vocabularies get at least this many bits: more room makes linear codes behave like random ones.
SMALLEST_BITS = 16
LARGEST_BITS = 30
#: Keys that count records which were sampled down, as bytes that are no UTF-8 and therefore no key of anybody's.
LENGTH_KEYS = (b"\xffkept", b"\xfflost")


def _encodable(key: str | int) -> bool:
    try:
        _encoded(key)
    except Refused:
        return False
    return True


def _encoded(key: str | int) -> bytes:
    try:
        return str(key).encode()
    except UnicodeEncodeError:
        raise Refused(f"Key {key!r} is not text that can be encoded.") from None


def bits_for(codes: int) -> int:
    """Bits of a code where there are this many, none of them zero."""
    return max(SMALLEST_BITS, codes.bit_length())


class Keys(BaseModel):
    """The universe of keys of a task and the public map from key to code."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["closed", "folded", "wide", "tree"] = Field(
        description="closed vocabulary, or open: folded, wide, or a tree in which keys can be found"
    )
    size: Annotated[int, Field(ge=1, le=(1 << LARGEST_BITS) - 1)] | None = Field(
        default=None, description="closed: keys are the integers 0 .. size - 1"
    )
    vocabulary: tuple[str, ...] | None = Field(default=None, description="closed: the keys by name")
    bits: int = Field(default=0, ge=0, le=64, description="bits per code (0: chosen from the size)")
    cohorts: int = Field(default=1, ge=1, le=64, description="independent code maps")
    tree: Tree | None = Field(default=None, description="tree: how keys are cut into pieces")
    count_lengths: bool = Field(
        default=False, description="two more keys that say how much is lost to max_entries"
    )
    salt: str = Field(
        default_factory=lambda: secrets.token_hex(16),
        pattern="^[0-9a-f]{32}$",
        description="public, makes the codes of this task its own",
    )

    @model_validator(mode="before")
    @classmethod
    def _choose_bits(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("bits"):
            if data.get("kind") == "wide":
                return {**data, "bits": 64}
            if data.get("kind") in ("folded", "tree"):
                return {**data, "bits": 20}
            listed = data.get("vocabulary")
            size = data.get("size") or (len(listed) if isinstance(listed, list | tuple) else 0)
            if isinstance(size, int):
                more = len(LENGTH_KEYS) if data.get("count_lengths") else 0
                return {**data, "bits": bits_for(size + more)}
        return data

    @model_validator(mode="after")
    def _check(self) -> Keys:
        if self.kind == "closed":
            if (self.size is None) == (self.vocabulary is None):
                raise ValueError("a closed vocabulary needs either a size or a list of keys")
            if self.vocabulary is not None and len(set(self.vocabulary)) != len(self.vocabulary):
                raise ValueError("the vocabulary lists a key twice")
            if self.count == 0:
                raise ValueError("the vocabulary of keys is empty")
            if self.places >= 1 << min(self.bits, 62):
                raise ValueError(f"{self.places} keys need more than {self.bits} bits")
        elif self.size is not None or self.vocabulary is not None:
            raise ValueError("an open vocabulary has no size and no list of keys")
        if (self.kind == "tree") != (self.tree is not None):
            raise ValueError(
                "keys of the kind tree, and no others, need a table tree: longest, levels, shares"
            )
        if self.tree is not None:
            maps = self.tree.stages * self.tree.maps
            if self.cohorts not in (1, maps):
                raise ValueError(f"cohorts follow from the tree: leave them out, or say {maps}")
            self.__dict__.update(cohorts=maps)
        if self.kind == "wide" and self.bits != 64:
            raise ValueError("wide codes have 64 bits")
        if self.kind != "wide" and not 2 <= self.bits <= LARGEST_BITS:
            raise ValueError(f"bits must be between 2 and {LARGEST_BITS}, not {self.bits}")
        return self

    @property
    def count(self) -> int:
        """Number of keys of a closed vocabulary."""
        return self.size if self.size is not None else len(self.vocabulary or ())

    @property
    def places(self) -> int:
        """Number of keys of a closed vocabulary, with those that count lengths."""
        return self.count + (len(LENGTH_KEYS) if self.count_lengths else 0)

    @property
    def alias_odds(self) -> float:
        """Probability that another given key shares a given key's code (0 unless folded, or a tree)."""
        return 1.0 / ((1 << self.bits) - 1) if self.kind in ("folded", "tree") else 0.0

    @cached_property
    def salt_words(self) -> tuple[int, int]:
        """The salt as the two words of a SipHash key."""
        raw = bytes.fromhex(self.salt)
        return int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:], "little")

    @cached_property
    def _places(self) -> dict[str, int]:
        return {key: place for place, key in enumerate(self.vocabulary or ())}

    def id_of(self, key: str | int) -> int:
        """The 64-bit id of one key; an unknown key of a closed vocabulary is refused."""
        if self.kind == "tree":
            return int(self.ids_of([key])[0])
        if self.kind != "closed":
            return siphash(*self.salt_words, _encoded(key))
        place = self._place(key)
        if place < 0:
            raise Refused(f"Key {key!r} is not in the task's vocabulary of {self.count} keys.")
        return place

    def _place(self, key: str | int) -> int:
        """The place of a key in a closed vocabulary, or -1."""
        text = str(key)
        if self.size is None:
            return self._places.get(text, -1)
        short = len(text) <= len(str(self.size)) and text.isascii() and text.isdigit()
        place = int(text) if short and text == str(int(text)) else -1
        return place if place < self.size else -1

    def known(self, keys: Sequence[str | int]) -> tuple[UInt64s, Bools]:
        """Ids of those keys that have one, and which they are."""
        if self.kind == "closed":
            places = np.fromiter((self._place(key) for key in keys), dtype=np.int64, count=len(keys))
            return places[places >= 0].astype(np.uint64), places >= 0
        if self.tree is not None:
            numbers = np.fromiter((self.tree.id_of(str(key)) for key in keys), np.int64, count=len(keys))
            return numbers[numbers >= 0].astype(np.uint64), numbers >= 0
        known = np.fromiter((_encodable(key) for key in keys), dtype=np.bool_, count=len(keys))
        return self.ids_of([key for key, here in zip(keys, known, strict=True) if here]), known

    def ids_of(self, keys: Sequence[str | int]) -> UInt64s:
        """Ids of many keys."""
        if self.tree is not None:
            ids, known = self.known(keys)
            if not known.all():
                key = keys[int(np.argmin(known))]
                raise Refused(
                    f"Key {str(key)!r} has no place in the task's tree: it is empty, begins otherwise, or has symbols "
                    "from outside the alphabet."
                )
            return ids
        if self.kind != "closed":
            return siphash_many(*self.salt_words, [_encoded(key) for key in keys])
        texts = list(map(str, keys))
        try:
            places = list(map(self._places.__getitem__ if self.size is None else int, texts))
            ids = np.array(places, dtype=np.uint64)
            if self.size is None or (list(map(str, places)) == texts and max(places, default=0) < self.size):
                return ids
        except (KeyError, ValueError, OverflowError):
            pass
        # There is an unknown key among them, which is refused by name.
        return np.fromiter((self.id_of(key) for key in keys), dtype=np.uint64, count=len(keys))

    def all_ids(self) -> UInt64s:
        """Every id of a closed vocabulary, in order."""
        if self.kind != "closed":
            raise Refused("An open vocabulary cannot be listed: name the keys to ask for.")
        return np.arange(self.count, dtype=np.uint64)

    def length_ids(self) -> UInt64s:
        """Ids of the keys that count records which were sampled down: the entry asked about was kept, or lost."""
        if self.kind == "closed":
            return np.arange(self.count, self.count + len(LENGTH_KEYS), dtype=np.uint64)
        return siphash_many(*self.salt_words, LENGTH_KEYS) if self.tree is None else self.tree.mark_ids()

    @property
    def asked(self) -> range:
        """The code maps that estimates are made from: all, or in a tree those that take no part in the search."""
        return range(self.cohorts) if self.tree is None else self.tree.cohorts_of(len(self.tree.levels))

    @property
    def asked_share(self) -> float:
        """The share of people whose reports estimates are made from."""
        return 1.0 if self.tree is None else self.tree.shares[-1] / sum(self.tree.shares)

    def name_of(self, place: int) -> str:
        """The key at a place of a closed vocabulary."""
        return str(place) if self.vocabulary is None else self.vocabulary[place]

    @property
    def example(self) -> str:
        """Some key that can be asked for."""
        if self.tree is not None and (self.tree.starts or self.tree.alphabet):
            return self.tree.starts[0] if self.tree.starts else self.tree.alphabet[0]
        return self.name_of(0) if self.kind == "closed" else "any"

    def other_side(self, ids: UInt64s) -> UInt64s:
        """Ids under which the same keys stand for negative values (mechanisms with two-sided keys)."""
        if self.kind == "closed":
            return ids + np.uint64(self.places)
        return ids ^ (np.uint64(_SIDE) if self.tree is None else SIDE)

    def signs(self, ids: UInt64s) -> Int64s:
        """The public sign of each key, +1 or -1."""
        if self.kind == "closed" and len(ids) > 2 * self.places:
            return self.signs(np.arange(2 * self.places, dtype=np.uint64))[ids]
        return 1 - 2 * (derive(self.salt_words[0], SIGN, ids) >> np.uint64(63)).astype(np.int64)

    def codes(self, ids: UInt64s, cohort: UInt64s | int) -> UInt64s:
        """The non-zero Walsh code of each key in the given cohort (one number, or one per id)."""
        which = np.asarray(cohort, dtype=np.uint64)
        if self.kind == "closed":
            if which.ndim == 0 and len(ids) > 2 * self.places:
                return self._permuted(np.arange(2 * self.places, dtype=np.uint64), which)[ids]
            return self._permuted(ids, which)
        if self.tree is not None:
            return self.tree.codes(ids, which, self.salt_words[0], self.bits)
        hashed = mix(ids ^ derive(self.salt_words[0], COHORT, which))
        if self.kind == "wide":
            return np.where(hashed == 0, np.uint64(1), hashed)
        return np.asarray(hashed % np.uint64((1 << self.bits) - 1) + np.uint64(1))

    def _permuted(self, places: UInt64s, which: UInt64s) -> UInt64s:
        """A salted permutation P of the code space, except that P^-1(0) is sent to P(2^bits - 1).

        Places are below 2^bits - 1, so that last image is free and no code is zero.
        """
        codes = self._scramble(places, which)
        return np.where(codes == 0, self._spares[which], codes)

    @cached_property
    def _round_keys(self) -> UInt64s:
        """[round, cohort]."""
        cohorts = np.arange(self.cohorts, dtype=np.uint64)
        return derive_all(self.salt_words[1], range(ROUND, ROUND + 4), cohorts).T

    @cached_property
    def _spares(self) -> UInt64s:
        cohorts = np.arange(self.cohorts, dtype=np.uint64)
        return self._scramble(np.full(self.cohorts, (1 << self.bits) - 1, dtype=np.uint64), cohorts)

    def _scramble(self, words: UInt64s, which: UInt64s) -> UInt64s:
        mask, shift = np.uint64((1 << self.bits) - 1), np.uint64((self.bits + 1) // 2)
        for keys in self._round_keys:
            key = keys[which]
            words = ((words ^ (words >> shift)) * (key | np.uint64(1)) + (key >> np.uint64(32))) & mask
        return words ^ (words >> shift)
