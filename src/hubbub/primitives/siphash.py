"""Public pseudo-random words: SipHash-2-4 for whatever must look random, a scrambler for whatever must only be spread.

Nothing here is secret. The same lines run on Python integers, on arrays, and compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from hubbub.primitives.arrays import UInt64s
from hubbub.primitives.kernel import kernel

_ALL = 0xFFFFFFFFFFFFFFFF


@kernel
def sip_rounds(v0: Any, v1: Any, v2: Any, v3: Any, count: int) -> Any:
    """`count` SipRounds; on Python integers, uint64 arrays and compiled scalars alike."""
    for _ in range(count):
        v0 = (v0 + v1) & _ALL
        v1 = (((v1 << 13) | (v1 >> 51)) & _ALL) ^ v0
        v0 = ((v0 << 32) | (v0 >> 32)) & _ALL
        v2 = (v2 + v3) & _ALL
        v3 = (((v3 << 16) | (v3 >> 48)) & _ALL) ^ v2
        v0 = (v0 + v3) & _ALL
        v3 = (((v3 << 21) | (v3 >> 43)) & _ALL) ^ v0
        v2 = (v2 + v1) & _ALL
        v1 = (((v1 << 17) | (v1 >> 47)) & _ALL) ^ v2
        v2 = ((v2 << 32) | (v2 >> 32)) & _ALL
    return v0, v1, v2, v3


_C0 = np.uint64(0x736F6D6570736575)
_C1 = np.uint64(0x646F72616E646F6D)
_C2 = np.uint64(0x6C7967656E657261)
_C3 = np.uint64(0x7465646279746573)
_END8 = np.uint64(8 << 56)
_FF = np.uint64(0xFF)


@kernel
def siphash_word(key0: Any, key1: Any, word: Any) -> Any:
    """SipHash-2-4 of one 8-byte little-endian word under the key (key0, key1)."""
    v0, v1, v2, v3 = sip_rounds(key0 ^ _C0, key1 ^ _C1, key0 ^ _C2, key1 ^ _C3 ^ word, 2)
    v0, v1, v2, v3 = sip_rounds(v0 ^ word, v1, v2, v3 ^ _END8, 2)
    v0, v1, v2, v3 = sip_rounds(v0 ^ _END8, v1, v2 ^ _FF, v3, 4)
    return v0 ^ v1 ^ v2 ^ v3


def siphash(key0: int, key1: int, message: bytes) -> int:
    """SipHash-2-4 (Aumasson and Bernstein 2012) of a byte string."""
    v0, v1, v2, v3 = key0 ^ int(_C0), key1 ^ int(_C1), key0 ^ int(_C2), key1 ^ int(_C3)
    whole = len(message) // 8 * 8
    last = message[whole:].ljust(7, b"\0") + bytes([len(message) & 0xFF])
    for start in range(0, whole + 8, 8):
        word = int.from_bytes(message[start : start + 8] if start < whole else last, "little")
        v0, v1, v2, v3 = sip_rounds(v0, v1, v2, v3 ^ word, 2)
        v0 ^= word
    v0, v1, v2, v3 = sip_rounds(v0, v1, v2 ^ 0xFF, v3, 4)
    return int(v0 ^ v1 ^ v2 ^ v3)


def siphash_many(key0: int, key1: int, messages: Sequence[bytes]) -> UInt64s:
    """SipHash-2-4 of many byte strings; those of equal length in words go through the rounds together."""
    if len(messages) < 8:
        return np.array([siphash(key0, key1, message) for message in messages], dtype=np.uint64)
    result = np.zeros(len(messages), dtype=np.uint64)
    sizes = np.fromiter((len(message) // 8 + 1 for message in messages), dtype=np.int64, count=len(messages))
    for size in np.unique(sizes):
        group = np.flatnonzero(sizes == size)
        filled = b"".join(
            messages[i].ljust(8 * int(size) - 1, b"\0") + bytes([len(messages[i]) & 0xFF])
            for i in group.tolist()
        )
        words = np.frombuffer(filled, dtype="<u8").reshape(len(group), int(size))
        start = (key0 ^ int(_C0), key1 ^ int(_C1), key0 ^ int(_C2), key1 ^ int(_C3))
        v0, v1, v2, v3 = (np.full(len(group), word, dtype=np.uint64) for word in start)
        for column in words.T:
            v0, v1, v2, v3 = sip_rounds(v0, v1, v2, v3 ^ column, 2)
            v0 = v0 ^ column
        v0, v1, v2, v3 = sip_rounds(v0, v1, v2 ^ np.uint64(0xFF), v3, 4)
        result[group] = v0 ^ v1 ^ v2 ^ v3
    return result


_M0, _M1 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S0, _S1, _S2 = np.uint64(30), np.uint64(27), np.uint64(31)


@kernel
def mix(words: Any) -> Any:
    """A bijective scrambler of 64-bit words (the finalizer of splitmix64). Public, not secret."""
    words = (words ^ (words >> _S0)) * _M0
    words = (words ^ (words >> _S1)) * _M1
    return words ^ (words >> _S2)


def derive(salt: int, purpose: int, items: UInt64s) -> UInt64s:
    """Public pseudo-random words for `items`, separate for every salt and purpose."""
    return derive_all(salt, range(purpose, purpose + 1), items)[..., 0]


def derive_all(salt: int, purposes: range, items: UInt64s) -> UInt64s:
    """The same for several purposes at once, along a new last axis."""
    start, scrambled = _starts(salt, purposes)
    return np.asarray(mix(mix(items[..., None] + scrambled) + start))


@lru_cache(maxsize=256)
def _starts(salt: int, purposes: range) -> tuple[UInt64s, UInt64s]:
    start = np.array([(salt + p * 0x9E3779B97F4A7C15) & _ALL for p in purposes], dtype=np.uint64)
    return start, mix(start)


#: Purposes of derived words. Rows of a seed use ROW + 0, ROW + 1, ...
SIGN, COHORT, ROUND, TREE, ROW = 1, 2, 3, 16, 1024
