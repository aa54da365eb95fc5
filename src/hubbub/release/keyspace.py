"""From keys to the coordinates of the vector, and from coordinates to cells.

Text keys have the coordinate SipHash-2-4(key) under the release's public salt, out of 2^64; keys that are
whole numbers below a known size are their own coordinates; of a list that was declared beforehand, a key's
coordinate is its place. Two texts that collide in one of 2^64 coordinates are summed, which keeps neighbours
neighbours. No guarantee rests on these hashes: they are public, as the list is.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from hubbub.primitives.arrays import Bools, UInt64s
from hubbub.primitives.errors import Refused
from hubbub.primitives.siphash import derive, siphash_many

ALL = 1 << 64
#: Purposes of derived words: the two sides of a coordinate, and the multipliers of the levels.
_SIDE, _LEVEL = 16, 18


class KeySpace(BaseModel):
    """What keys there can be, and the public salt that scatters them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["text", "integers", "listed"]
    universe: int = Field(default=ALL, ge=1, le=ALL, description="number of coordinates")
    salt: str = Field(default_factory=lambda: secrets.token_hex(16), pattern="^[0-9a-f]{32}$")
    names: tuple[str, ...] | None = Field(default=None, description="the declared keys, in their order")

    @model_validator(mode="after")
    def _check(self) -> KeySpace:
        if (self.kind == "listed") != (self.names is not None):
            raise ValueError("listed keys have names, and only they")
        if self.names is not None and not len(self._places) == len(self.names) == self.universe:
            raise ValueError("a list of keys names every key once")
        return self

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names or ())}

    @cached_property
    def _salt_words(self) -> tuple[int, int]:
        raw = bytes.fromhex(self.salt)
        return int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:], "little")

    def ids(self, keys: Iterable[Any] | NDArray[Any]) -> UInt64s:
        """The coordinates of many keys."""
        if self.kind == "integers":
            return self._whole(keys)
        if self.kind == "listed":
            return self._listed(keys)
        return siphash_many(
            *self._salt_words, [_text(key).encode("utf-8", "surrogatepass") for key in _each(keys)]
        )

    @property
    def list_bytes(self) -> int:
        """About what the list takes in a file: texts in quotes, separated by commas."""
        return sum(len(name.encode("utf-8", "surrogatepass")) + 3 for name in self.names or ())

    def declared(self, keys: Iterable[Any] | NDArray[Any]) -> Bools:
        """Which keys are in the list."""
        return np.array([_text(key) in self._places for key in _each(keys)], dtype=np.bool_)

    def _listed(self, keys: Iterable[Any] | NDArray[Any]) -> UInt64s:
        texts = [_text(key) for key in _each(keys)]
        unknown = next((text for text in texts if text not in self._places), None)
        if unknown is not None:
            raise Refused(f"Key {unknown!r} is not in the list of keys that was declared.")
        return np.array([self._places[text] for text in texts], dtype=np.uint64)

    def _whole(self, keys: Iterable[Any] | NDArray[Any]) -> UInt64s:
        if isinstance(keys, np.ndarray) and keys.dtype.kind == "u":
            numbers = keys.astype(np.uint64)
        elif isinstance(keys, np.ndarray) and keys.dtype.kind == "i":
            if len(keys) and keys.min() < 0:
                raise Refused(f"Key {keys.min()} is below 0; integer keys run from 0 to {self.universe - 1}.")
            numbers = keys.astype(np.uint64)
        else:
            numbers = np.array([self._number(key) for key in keys], dtype=np.uint64)
        if self.universe < ALL and len(numbers) and int(numbers.max()) >= self.universe:
            raise Refused(
                f"Key {numbers.max()} is too large; integer keys run from 0 to {self.universe - 1}."
            )
        return numbers

    def _number(self, key: Any) -> int:
        text = str(key).strip()
        if not (text.isascii() and text.isdigit()) or int(text) >= self.universe:
            raise Refused(f"Key {text!r} is not a whole number from 0 to {self.universe - 1}.")
        return int(text)

    def scattered(self, ids: UInt64s, side: int) -> UInt64s:
        """Coordinates as pseudo-random words; side 1 stands for negative values."""
        return derive(self._salt_words[0], _SIDE + side, ids)

    def multipliers(self, levels: int) -> UInt64s:
        """One odd number per level: multiply-shift hashing (Dietzfelbinger et al. 1997)."""
        return derive(self._salt_words[1], _LEVEL, np.arange(levels, dtype=np.uint64)) | np.uint64(1)


def hash_to(span: int, multipliers: UInt64s, words: UInt64s) -> UInt64s:
    """Universal hashing of words into 0 .. span - 1 (span at most 2^32), broadcasting.

    The top half of the product is scaled down to the span. A cell's share of the 2^32 tops differs from
    1 / span by less than 2^-32, so two words collide with probability at most 2 / span + 2^-31.
    """
    product = multipliers * words
    product >>= np.uint64(32)
    product *= np.uint64(span)
    product >>= np.uint64(32)
    return product


def _each(keys: Iterable[Any] | NDArray[Any]) -> Iterable[Any]:
    return keys.tolist() if isinstance(keys, np.ndarray) else keys


def _text(key: Any) -> str:
    if isinstance(key, bool) or not isinstance(key, str | int | np.integer):
        raise Refused(f"A key must be text or a whole number, not {type(key).__name__}.")
    return str(key)
