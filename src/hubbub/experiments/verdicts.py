"""A number of a paper beside ours, and whether the two agree, in words.

The rules are the same on all pages, and every row that differs says why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Standard errors that two numbers may be apart and still agree.
_APART = 3.0
#: Of what a paper says about itself in round numbers ("about 30%"), this share has to come out.
_ABOUT = 0.75


@dataclass(frozen=True)
class Compared:
    """What is compared, the paper's number or words, ours, and the verdict."""

    what: str
    theirs: float | str
    ours: float | str
    verdict: str

    def line(self) -> str:
        """A row of a table."""
        theirs = self.theirs if isinstance(self.theirs, str) else f"{self.theirs:.6g}"
        ours = self.ours if isinstance(self.ours, str) else f"{self.ours:.4g}"
        return f"| {self.what} | {theirs} | {ours} | {self.verdict} |"


def stated(what: str, theirs: str, ours: str, holds: bool, why: str = "") -> Compared:
    """What a paper says in words about a figure without numbers."""
    return Compared(what, theirs, ours, "agrees" if holds else f"differs: {why or 'no reason found'}")


def printed(
    what: str, theirs: float, ours: float, error: float = 0.0, why: str = "", digits: int = 0
) -> Compared:
    """A number that the paper prints.

    It agrees if ours is as close as rounding allows (half a unit of the last digit that is printed) and three standard
    errors of the difference, theirs taken to be as noisy as ours. If it does not, `why` is said. `digits` is how many
    are printed where zeros at the end count.
    """
    room = _half_a_unit(theirs, digits) + _APART * math.sqrt(2) * error
    if abs(theirs - ours) <= room * (1 + 1e-9):
        return Compared(what, theirs, ours, "agrees")
    factor = f"{ours / theirs:.2g} times the printed number" if theirs else "not 0"
    return Compared(what, theirs, ours, f"differs, {factor}: {why or 'no reason found'}")


def claimed(what: str, theirs: float, ours: float, why: str = "") -> Compared:
    """What a paper says in round numbers about how much better it is: more, or not much less, agrees."""
    agrees = ours >= _ABOUT * theirs
    return Compared(what, theirs, ours, "agrees" if agrees else f"differs: {why or 'no reason found'}")


def bounded(
    what: str, bound: float, measured: float, error: float, equality: bool = False, below: str = ""
) -> Compared:
    """A formula of the paper, worked out here, above which a mean must not lie.

    Where the formula is no mere bound but the mean itself (`equality`), half of all measured means lie above it, by
    a few standard errors at most. `below` says why it may be less than that.
    """
    off = (measured - bound) / error if error else math.inf * (measured - bound)
    if equality and abs(off) <= _APART + 1:
        return Compared(
            what,
            bound,
            measured,
            f"agrees: it is the mean itself, measured {off:+.1f} standard errors from it",
        )
    if measured <= bound:
        return Compared(what, bound, measured, f"holds: {below}" if equality and below else "holds")
    return Compared(what, bound, measured, f"does not hold: {off:.1f} standard errors above")


def _half_a_unit(number: float, digits: int) -> float:
    """Half a unit of the last digit of a number, as it is written, or of so many significant digits."""
    if digits and number:
        return 0.5 * 10.0 ** (math.floor(math.log10(abs(number))) + 1 - digits)
    mantissa, _, power = f"{number:.12g}".partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 0.5 * 10.0 ** (int(power or 0) - decimals)
