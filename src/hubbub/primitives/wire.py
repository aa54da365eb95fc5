"""Reports as bytes: fixed width, bit-packed, strict.

A report is a row of unsigned integers (the public seed first). A layout says how many bits each one
takes and which values are legal. Packing is little-endian bit by bit; the last byte is filled with
zero bits. Unpacking refuses a wrong length, a filler bit that is set and a value out of range, so
every report has exactly one encoding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hubbub.primitives.arrays import Bytes, Int64s, UInt64s
from hubbub.primitives.errors import Refused

#: Reports that are unpacked at a time: few enough to stay in the processor's cache.
_BLOCK = 1 << 14


@dataclass(frozen=True)
class WireField:
    """One number of a report: legal values are 0 .. limit - 1."""

    name: str
    limit: int

    @property
    def bits(self) -> int:
        return (self.limit - 1).bit_length()


@dataclass(frozen=True)
class Layout:
    """The fields of a report in the order they are packed."""

    fields: tuple[WireField, ...]

    @property
    def bits(self) -> int:
        return sum(field.bits for field in self.fields)

    @property
    def width(self) -> int:
        """Bytes per report."""
        return (self.bits + 7) // 8

    def pack(self, reports: UInt64s) -> Bytes:
        """Rows of numbers [n, fields] as rows of bytes [n, width]."""
        words = np.zeros((len(reports), (self.width + 7) // 8), dtype="<u8")
        start = 0
        for column, field in enumerate(self.fields):
            place, shift = divmod(start, 64)
            number = reports[:, column] & np.uint64((1 << field.bits) - 1)
            if field.bits:
                words[:, place] |= number << np.uint64(shift)
            if shift + field.bits > 64:
                words[:, place + 1] |= number >> np.uint64(64 - shift)
            start += field.bits
        return np.ascontiguousarray(words.view(np.uint8)[:, : self.width])

    def unpack(self, packed: bytes | Bytes) -> UInt64s:
        """The numbers in a run of packed reports. Anything that is not a report is refused."""
        reports, reasons = self.unpack_each(packed)
        bad = np.flatnonzero(reasons)
        if len(bad):
            raise Refused(f"Report {bad[0]} is not valid: {self.reason(int(reasons[bad[0]]))}.")
        return reports

    def unpack_each(self, packed: bytes | Bytes) -> tuple[UInt64s, Int64s]:
        """Unpack all, with a reason code per report (0: valid; see `reason`)."""
        raw = np.frombuffer(packed, dtype=np.uint8) if isinstance(packed, bytes) else packed.reshape(-1)
        if len(raw) % self.width:
            raise Refused(
                f"{len(raw)} bytes are not a whole number of reports of {self.width} bytes: "
                "the data is truncated or belongs to another task."
            )
        rows = raw.reshape(-1, self.width)
        reports = np.empty((len(rows), len(self.fields)), dtype=np.uint64)
        reasons = np.zeros(len(rows), dtype=np.int64)
        for start in range(0, len(rows), _BLOCK):
            part = slice(start, start + _BLOCK)
            self._unpack_block(rows[part], reports[part], reasons[part])
        return reports, reasons

    def _unpack_block(self, rows: Bytes, reports: UInt64s, reasons: Int64s) -> None:
        """Fill `reports` and `reasons` from rows of bytes, read as 64-bit words: a field lies in one or two of them."""
        padded = np.zeros((len(rows), (self.width + 7) // 8 * 8), dtype=np.uint8)
        padded[:, : self.width] = rows
        words = padded.view("<u8")
        start = 0
        for column, field in enumerate(self.fields):
            number = _bits(words, start, field.bits)
            reports[:, column] = number
            if field.limit < 1 << field.bits:
                reasons[number >= np.uint64(field.limit)] = column + 1
            start += field.bits
        if start < 8 * self.width:
            reasons[_bits(words, start, 8 * self.width - start) != 0] = len(self.fields) + 1

    def reason(self, code: int) -> str:
        """What a reason code of `unpack_each` means."""
        if code > len(self.fields):
            return "filler bits after the last field are set"
        field = self.fields[code - 1]
        return f"{field.name} is not below {field.limit}"


def _bits(words: UInt64s, start: int, count: int) -> UInt64s:
    """`count` bits (at most 64) of each row of little-endian words, from bit `start` on."""
    if count == 0:
        return np.zeros(len(words), dtype=np.uint64)
    place, shift = divmod(start, 64)
    found = words[:, place] >> np.uint64(shift)
    if shift + count > 64:
        found = found | (words[:, place + 1] << np.uint64(64 - shift))
    return found & np.uint64((1 << count) - 1)
