"""Votes for and against a key if its mean value is known: what they say of the other unknown, its frequency."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hubbub.primitives.arrays import Floats

#: Frequencies over which a tail is averaged.
_PLACES = 12


@dataclass(frozen=True)
class SideVotes:
    """Votes for the key and against it: counted, and their means at + slope * f, nearly those of Poisson numbers."""

    counted: tuple[Any, Any]
    at: tuple[Any, Any]
    slope: tuple[Any, Any]

    def likeliest(self, least: Any, most: Any) -> Any:
        """The frequency between these under which what was counted is likeliest.

        The likelihood has one maximum, at an end or where pro a' / (a + a' f) + contra b' / (b + b' f) = a' + b', a
        quadratic equation whose other root, if any, is not possible: one of the means is 0 or less there.
        """
        (pro, contra), (a, b), (da, db) = self.counted, self.at, self.slope
        square = (da + db) * da * db
        linear = (da + db) * (a * db + da * b) - (pro + contra) * da * db
        rest = (da + db) * a * b - pro * da * b - contra * db * a
        root = np.sqrt(np.maximum(linear**2 - 4 * square * rest, 0))
        far = -(linear + np.where(linear < 0, -root, root)) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            rising = pro * da / (a + da * least) + contra * db / (b + db * least) > da + db
            one, other = far / square, rest / far
        found = np.where((one > least) & (one < most), one, other)
        inside = rising & (found > least) & (found < most)
        return np.where(inside, found, np.where(rising, most, least))

    def averaged(self, tail: Callable[[Any], Floats], least: Any, likeliest: Any) -> Floats:
        """A tail over all frequencies from `least` on, each by how likely it makes what was counted."""
        slope = sum(self.slope)
        room = (4 * np.sqrt(sum(self.counted) + 1) + 4) / slope
        bottom = np.maximum(likeliest - room, least)
        places, weights = np.polynomial.legendre.leggauss(_PLACES)
        frequency = bottom + (places[:, None] + 1) / 2 * (likeliest + room - bottom)
        means = (at + rise * frequency for at, rise in zip(self.at, self.slope, strict=True))
        votes = zip(self.counted, means, strict=True)
        likely = sum(n * np.log(np.maximum(mean, 1e-300)) for n, mean in votes) - slope * frequency
        share = weights[:, None] * np.exp(likely - likely.max(axis=0))
        return np.asarray((share * tail(frequency)).sum(axis=0) / share.sum(axis=0))
