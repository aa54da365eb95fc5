"""How numbers are written, and where on a drawing they lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hubbub.primitives.arrays import Floats
from hubbub.server.estimates import Estimate


@dataclass(frozen=True)
class Scale:
    """A common axis: from values to percent of the drawing's width."""

    low: float
    high: float

    @classmethod
    def around(cls, shown: Sequence[Estimate]) -> Scale:
        """Room for all intervals and for 0, and a little more."""
        return cls.over(
            np.concatenate([found.low for found in shown]), np.concatenate([found.high for found in shown])
        )

    @classmethod
    def over(cls, lows: Floats, highs: Floats) -> Scale:
        """Room for these limits, where they are known, and for 0."""
        low = float(min(lows[np.isfinite(lows)], default=0.0))
        high = float(max(highs[np.isfinite(highs)], default=0.0))
        low, high = min(low, 0.0), max(high, 0.0)
        margin = 0.03 * (high - low) or 1.0
        return cls(low - margin if low < 0 else 0.0, high + margin)

    def place(self, value: float) -> float:
        return round(100 * (value - self.low) / (self.high - self.low), 3)

    def ticks(self) -> list[float]:
        """Four to eight round numbers."""
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [number * step for number in range(first, last + 1)]


@dataclass(frozen=True)
class Unit:
    """How the values of a list are written: in percent or not, with the same number of decimals."""

    percent: bool
    decimals: int = 2

    def for_errors(self, errors: Floats) -> Unit:
        """Two digits of the typical error: more would be noise."""
        known = errors[np.isfinite(errors) & (errors > 0)]
        typical = float(np.median(known)) * (100 if self.percent else 1) if len(known) else 1.0
        return replace(self, decimals=min(max(1 - math.floor(math.log10(typical)), 0), 8))

    def for_steps(self, step: float) -> Unit:
        """As many decimals as marks on an axis need."""
        step *= 100 if self.percent else 1
        return replace(self, decimals=next((d for d in range(8) if math.isclose(step, round(step, d))), 8))

    def text(self, value: float) -> str:
        written = f"{100 * value if self.percent else value:.{self.decimals}f}"
        if float(written) == 0:
            written = written.removeprefix("-")
        return written.replace("-", "−") + ("%" if self.percent else "")

    def change(self, value: float) -> str:
        """A difference, with its sign: of percentages, in points."""
        written = self.text(value).removesuffix("%")
        return f"+{written}" if value > 0 and float(written) else written
