"""What samplers make of tapes, of some that take them to rare places among others: for `make_vectors.py`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from vector_reports import Streams

from hubbub.checks.conformance import TapeCoins

#: The group of streams that the samplers read.
GROUP = 1000


def _late(numerator: int, denominator: int, digits: int, under: bool) -> list[int]:
    """Digits of a number that is told from a fraction by the last of them only: just under it, or over."""
    found, rest = [], numerator
    while len(found) < digits or (under and not any(found)):
        digit, rest = divmod(256 * rest, denominator)
        found.append(digit)
    while found[-1] == (0 if under else 255):  # there is none beyond
        found.pop()
    found[-1] += -1 if under else 1
    return found


def _tape(digits: list[int], first: int) -> list[int]:
    """The words that are read as these digits: `first` of them from the top of a first word, 7 from each other."""
    words = [int.from_bytes(bytes(digits[:first]), "little") << 64 - 8 * first] if first else []
    rest = digits[first:]
    return words + [int.from_bytes(bytes(rest[at : at + 7]), "little") for at in range(0, len(rest), 7)]


def _laplace_digits() -> Iterator[list[int]]:
    """Ways through discrete Laplace noise of scale 1 that random words hardly ever take."""
    e, rest = (176214840, 479001600), (1, 302786760)
    for n in (4, 5, 9):
        accepted, refused, end = _late(*e, n, True), _late(*e, n, False), _late(*rest, n, False)
        yield [*accepted, *accepted, *refused, *end, 0]
        yield [*accepted, *refused, *end, 200]
        for ups in range(4):  # coins of 1/13, 1/14, ... until one is tails
            further = [digit for k in range(ups) for digit in _late(1, 13 + k, 2, True)]
            tails = _late(1, 13 + ups, 2, False)
            yield [*refused, *_late(*rest, n, True), *further, *tails, *refused, *end, 100]


def _questions() -> Iterator[tuple[str, list[int], list[int] | None]]:
    """What is asked, of which tape: these words, or a stream."""
    for bits in (0, 1, 2, 7, 8, 16, 20, 23, 24, 25, 31, 32, 33, 39, 40, 41, 48, 53, 54, 61):
        for bound in sorted(
            {1 << bits, (1 << bits) + 1, (1 << bits) + (1 << bits // 2), max(1, (1 << bits) - 1)}
        ):
            yield "below", [bound], None
            for pool in (1, 1 << 22, 1 << 38) if bits >= 20 else (1,):
                yield "draw", [pool, bound], None
    fractions = [
        (1, 2),
        (1, 3),
        (1, 256),
        (255, 256),
        (1, 1),
        (0, 5),
        (-1, 5),
        (7, 5),
        (176214840, 479001600),
    ]
    fractions += [(1, 302786760), (3, 1 << 54), ((1 << 53) + 1, (1 << 54) - 1), (1 << 53, (1 << 54) + 1)]
    for numerator, denominator in (*fractions, (1 << 54, (1 << 55) + 3)):
        for pool in (1, (1 << 16) + 12345):
            yield "coin", [pool, numerator, denominator], None
        for n in (2, 4, 5, 6) if 0 < numerator < denominator else ():
            for under in (True, False):
                yield "coin", [1, numerator, denominator], _tape(_late(numerator, denominator, n, under), 0)
    for scale in (
        (1, 1),
        (2, 1),
        (3, 2),
        (1, 5),
        (7, 1),
        (1 << 24, 1),
        ((1 << 40) + 5, 1 << 38),
        (1 << 54, 1 << 50),
    ):
        for value, limit in ((0, 1000), (-5, 6), (5, 5)):
            yield "clamped_laplace", [value, *scale, limit], None
    for digits in _laplace_digits():
        yield "clamped_laplace", [0, 1, 1, 50], _tape(digits, 5)


def samplers() -> dict[str, Any]:
    """Rows [what, what is asked, its tape, the answers]: one answer from a tape of words, four from a stream.

    Tapes of words go on with the stream of the row's number, which is the tape of all others.
    """
    rows: list[list[Any]] = []
    questions = list(_questions())
    streams = Streams(GROUP, len(questions))
    for number, (what, asked, words) in enumerate(questions):
        coins, answers = TapeCoins(chain(words or (), streams.words(number))), []
        for _ in range(4 if words is None else 1):
            found = getattr(coins, what)(*asked)
            answers += [str(int(one)) for one in (found if isinstance(found, tuple) else (found,))]
        given = None if words is None else [f"{word:016x}" for word in words]
        rows.append([what, list(map(str, asked)), given, answers])
    return {"rows": rows}
