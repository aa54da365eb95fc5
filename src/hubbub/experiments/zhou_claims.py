"""What Zhou et al. say in words about Figures 1 to 3, which print no numbers, and what came out here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hubbub.experiments.runner import Comparison, Row
from hubbub.experiments.verdicts import Compared, stated

#: The paper's competitors.
_EARLIER = ("sampled", "repeated", "gaussian", "harmony", "pckv_grr")
_TEXT, _TUNED = "sparse_sum as published", "sparse_sum tuned"
_CONSTANTS = "these are the constants of the text; the authors' program has smaller ones"


def _errors(rows: Sequence[Row], panel: str, mechanism: str) -> dict[float, float]:
    """The largest error over what a panel varies."""
    return {
        row[panel]: row["L_inf"] for row in rows if row["panel"] == panel and row["mechanism"] == mechanism
    }


def _slope(errors: dict[float, float]) -> float:
    """How the error grows with what is varied: the power, from the first to the last point."""
    first, last = min(errors), max(errors)
    return math.log(errors[last] / errors[first]) / math.log(last / first)


def _spread(errors: dict[float, float]) -> float:
    return max(errors.values()) / min(errors.values())


def _beaten(rows: Sequence[Row], panel: str, mechanism: str) -> tuple[list[float], int]:
    """Where an earlier mechanism has a smaller largest error, and how many points there are."""
    own = _errors(rows, panel, mechanism)
    others = [_errors(rows, panel, name) for name in _EARLIER]
    return [at for at in sorted(own) if any(other.get(at, math.inf) < own[at] for other in others)], len(own)


def _smallest(rows: Sequence[Row], panel: str, mechanism: str, what: str, why: str) -> Compared:
    lost, points = _beaten(rows, panel, mechanism)
    ours = f"at {points - len(lost)} of {points} points"
    places = ", ".join(f"{at:g}" for at in lost)
    return stated(what, "smallest", ours, not lost, f"an earlier one is below it at {places}; {why}")


def about_records(rows: Sequence[Row]) -> Comparison:
    """Figure 1: hiding the record."""
    grown = _slope(_errors(rows, "entries", _TEXT))
    wide = {at: error for at, error in _errors(rows, "keys", _TEXT).items() if at >= 1024}
    return [
        stated("the largest error grows with k to the power", "1/2", f"{grown:.2f}", abs(grown - 0.5) < 0.1),
        _smallest(
            rows, "entries", _TEXT, "the smallest largest error for all k, constants of the text", _CONSTANTS
        ),
        _smallest(
            rows, "entries", _TUNED, "the same, constants of the least predicted error", "by sampling noise"
        ),
        _smallest(
            rows, "epsilon", _TUNED, "the smallest largest error for all epsilon, tuned", "by sampling noise"
        ),
        stated(
            "a stable error for large d: largest over smallest, from 1,024 keys on",
            "stable",
            f"{_spread(wide):.2f}",
            _spread(wide) < 1.25,
        ),
    ]


def about_entries(rows: Sequence[Row]) -> Comparison:
    """Figure 2: hiding an entry."""
    over_k, over_d = (_spread(_errors(rows, panel, _TEXT)) for panel in ("entries", "keys"))
    one = "for records of one entry the others have nothing to share out either"
    return [
        stated(
            "the error does not scale with k: largest over smallest", "flat", f"{over_k:.2f}", over_k < 1.5
        ),
        stated(
            "the error does not scale with d: largest over smallest", "flat", f"{over_d:.2f}", over_d < 1.5
        ),
        _smallest(rows, "entries", _TEXT, "the smallest largest error for all k", one),
        _smallest(rows, "epsilon", _TEXT, "the smallest largest error for all epsilon", one),
        _smallest(rows, "keys", _TEXT, "the smallest largest error for all d", one),
    ]


def about_distances(rows: Sequence[Row]) -> Comparison:
    """Figure 3: hiding an l1 distance."""

    def square(mechanism: str) -> list[float]:
        return [row["MSE"] for row in rows if row["mechanism"] == mechanism]

    loose, clipped = square("sparse_sum with delta as published"), square(_TEXT)
    tuned = square(_TUNED)
    best = min(loose, default=math.inf)
    return [
        stated(
            "clipping has a smaller error than the regime with delta (mean squared; clip of the text)",
            "at every L",
            f"{min(clipped):.2g} against {best:.2g}",
            min(clipped) < best,
            "with the text's clip it is larger; the authors' program has a smaller clip",
        ),
        stated(
            "the same, clip of the least predicted error",
            "at every L",
            f"{min(tuned):.2g} against {best:.2g}",
            min(tuned) < best,
        ),
    ]


#: By the unit that is hidden.
CLAIMS: dict[str, Callable[[Sequence[Row]], Comparison]] = {
    "record": about_records,
    "entry": about_entries,
    "l1": about_distances,
}
