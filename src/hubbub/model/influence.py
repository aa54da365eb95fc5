"""What one report can do to an estimate, whoever made it up.

Estimates are averages: of n reports, each adds its *contribution* to n times the estimate of a key, and what it can add
lies between two numbers, `-down` and `up`. So

- one report replaced by any other moves the estimate by at most (up + down) / n, and some pair does;
- m forged reports among n move it from what the honest ones say, e, to (1 - m/n) e + (m/n) c, with c between -down and
  up. An honest report of somebody without the key contributes 0 on average, hence the two numbers.

Frequency and mean are made of the same reports: what a report can add to both together is a polygon in the plane, whose
corners `corners` finds. Any weighted sum of the two is largest at one of them.

Where only a share of the reports is *heard*, those that the estimate of a key is made from, n is their number, and a
forger has all of his heard: of m forged among n, of which a share h is heard where they are honest, the forged ones are
a share m / (m + h (n - m)) of what is heard. That is so in a tree, where few are asked for whole keys, and where a
report is about one key only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hubbub.model.keys import LARGEST_BITS, Keys
from hubbub.primitives.arrays import Floats, UInt64s
from hubbub.primitives.errors import Refused

if TYPE_CHECKING:
    from hubbub.model.mechanism import Mechanism, Moments, Quantity

#: Corners that a polygon may have before something must be wrong.
_MOST = 64


@dataclass(frozen=True)
class Influence:
    """The most that one report adds to n times an estimate, upwards and downwards, and what replacing one changes.

    All three are those of a report that is heard, divided by `heard`, the share of honest reports that are.
    """

    up: float
    down: float
    replaced: float
    heard: float = 1.0

    @property
    def most(self) -> float:
        """Upwards or downwards."""
        return max(self.up, self.down)

    def moved(self, share: float) -> float:
        """The most that a share of all reports moves the estimate of a key that nobody else has."""
        return share_of_heard(share, self.heard) * self.heard * self.most

    def where(self, heard: float) -> Influence:
        """The same where only this share of honest reports is heard."""
        return Influence(self.up / heard, self.down / heard, self.replaced / heard, self.heard * heard)


def share_of_heard(share: float, heard: float) -> float:
    """The share of forged reports among those that are heard: all of them are, and of the others a share `heard`."""
    return share / (share + (1 - share) * heard)


def of_both(moments: Moments) -> Floats:
    """[2, keys]: frequencies and means; NaN where they are not estimated."""
    columns = [column for column in (moments.frequency, moments.mean) if column is not None]
    missing = np.full(len(columns[0]), np.nan)
    return np.stack([missing if each is None else each for each in (moments.frequency, moments.mean)])


def contributions_one_by_one(mechanism: Mechanism, keys: Keys, reports: UInt64s, ids: UInt64s) -> Floats:
    """[2, reports, keys]: the estimates from each report alone."""
    found = np.empty((2, len(reports), len(ids)))
    for place in range(len(reports)):
        state = mechanism.empty(keys)
        mechanism.absorb(state, keys, reports[place : place + 1])
        found[:, place] = of_both(mechanism.uncut.moments(state, keys, ids))
    return found


def effects_of(mechanism: Mechanism) -> Floats:
    """[corners, 2]: from the loudest reports about the only key of a made-up vocabulary."""
    keys, ids = Keys(kind="closed", size=1, bits=LARGEST_BITS, salt="0" * 32), np.zeros(1, dtype=np.uint64)
    blank = np.zeros((1, len(mechanism.layout.fields)), dtype=np.uint64)

    def furthest(way: Floats) -> Floats:
        loudest = mechanism.louder(keys, blank, ids, way[:, None])
        return mechanism.contributions(keys, loudest, ids)[:, 0, 0]

    return corners(furthest)


def influence_of(
    mechanism: Mechanism, quantity: Quantity, frequency: float, center: float, half: float
) -> Influence:
    """As `Mechanism.influence` promises, of a report that is heard."""
    if quantity == "conditional":
        if not 0 < frequency <= 1:
            raise Refused("What a report does to a conditional mean depends on the share that has the key.")
        found = of_quotient(mechanism.effects(), frequency)
        return Influence(half * found.up, half * found.down, half * found.replaced)
    return weighted(mechanism.effects(), *direction_of(mechanism, quantity, center, half))


def direction_of(mechanism: Mechanism, quantity: Quantity, center: float, half: float) -> Floats:
    """[2]: how much of frequency and mean is in a quantity, of a conditional mean in what it is moved by."""
    if quantity == "frequency" or (quantity == "sum" and "mean" not in mechanism.quantities):
        return np.array([1.0, 0.0])
    return np.array([0.0 if quantity == "conditional" else center, half])


def influence_together_of(
    mechanism: Mechanism,
    quantity: Quantity,
    keys: Keys,
    count: int,
    center: float,
    half: float,
    chosen: bool,
) -> Influence:
    """As `Mechanism.influence_together` promises."""
    if quantity == "conditional":
        raise Refused(
            "What a report does to several keys is told of sums of reports, not of a conditional mean."
        )
    most = keys.count if keys.kind == "closed" else math.inf
    if not isinstance(count, int | np.integer) or not 1 <= count <= most:
        there = f"of which there are {most:,}, " if keys.kind == "closed" else ""
        raise Refused(f"What a report does to several keys is told of 1 or more keys, {there}not of {count}.")
    way = direction_of(mechanism, quantity, center, half)
    up, down = (mechanism.loudest_together(keys, sign * way, count, chosen) for sign in (1, -1))
    return Influence(up, down, up + down)


def loudest_of(mechanism: Mechanism, keys: Keys, ids: UInt64s, way: Floats) -> float:
    """The most that a report without a seed adds to a direction [2] of frequency and mean, summed up over keys."""
    blank = np.zeros((1, len(mechanism.layout.fields)), dtype=np.uint64)
    loudest = mechanism.louder(keys, blank, ids, np.repeat(way[:, None], len(ids), axis=1))
    said = np.nan_to_num(mechanism.contributions(keys, loudest, ids))[:, 0]
    return float(way @ said.sum(axis=1))


def weighted(corners: Floats, by_frequency: float, by_mean: float) -> Influence:
    """Of by_frequency * frequency + by_mean * mean; what is not part of it (weight 0) need not be estimated."""
    weights = np.array([by_frequency, by_mean])
    values = np.where(weights == 0, 0.0, corners) @ weights
    up, down = float(values.max()), float(-values.min())
    return Influence(up, down, up + down)


def of_quotient(corners: Floats, frequency: float) -> Influence:
    """Of mean / frequency, in [-1, 1], for a key that a share `frequency` of the users hold, for many reports.

    With mean and frequency M and F, q = M / F, a report (f, m) more among n makes it (n M + m) / (n F + f), a change of
    (m - q f) / (n F + f). The numbers are the largest of (m - q f) / F over |q| <= 1: what is left out, f / (n F), goes
    to 0 as n F grows, the number of people who hold the key. Where there are hardly any, only the range is a bound.
    """
    change = corners[:, None] - corners[None, :]
    presence = np.abs(np.nan_to_num(corners[:, 0]))
    most = (np.abs(change[..., 1]) + np.abs(np.nan_to_num(change[..., 0]))).max()
    up, down = (float((way * corners[:, 1] + presence).max()) for way in (1, -1))
    return Influence(up / frequency, down / frequency, float(most) / frequency)


def corners(furthest: Callable[[Floats], Floats]) -> Floats:
    """[corners, 2]: those of a convex polygon, from what lies furthest in a direction.

    Begins with four directions and looks beyond every edge until there is nothing. A coordinate that is NaN is not
    there; of the other, the two ends are given.
    """
    found = [furthest(np.array(way)) for way in ((1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0))]
    if np.isnan(found[0]).any():
        there = 1 if np.isnan(found[0][0]) else 0
        return np.stack(found[2:] if there else found[:2])
    points = _around(np.stack(found))
    while len(points) <= _MOST:
        after = np.roll(points, -1, axis=0)
        edges = after - points
        outward = np.stack([edges[:, 1], -edges[:, 0]], axis=1)
        beyond = np.array([furthest(way) for way in outward])
        size = 1e-9 * (1 + np.abs(outward).sum(axis=1) * np.abs(points).max())
        new = beyond[((beyond - points) * outward).sum(axis=1) > size]
        if not len(new):
            return points
        points = _around(np.concatenate([points, new]))
    raise AssertionError("what a report can say is no polygon")


def _around(points: Floats) -> Floats:
    """The different points, counterclockwise around their middle, those in between left out."""
    scale = np.maximum(np.abs(points).max(axis=0), 1e-300)
    _, first = np.unique(np.round(points / scale, 9), axis=0, return_index=True)
    points = points[first]
    if len(points) < 3:
        return points
    middle = points.mean(axis=0)
    order = np.argsort(np.arctan2(*((points - middle) / scale).T[::-1]))
    return points[order]
