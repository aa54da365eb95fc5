"""The whole numbers that estimates are made of, where they may be small, and how their laws depend on the truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hubbub.primitives.arrays import Floats, Int64s

#: How much more often a holder votes than others do, from which on holders are looked at apart.
SURE = 0.2
#: Standard errors above 0 from which on a frequency is taken into account in a variance.
TOLD_APART = 2.0


def told_apart(share: Any, noise: Any) -> Any:
    """Estimated shares for use in variances: those that can be told from 0 (`noise`: their standard error there).

    The others count as 0. Noise that is cut at 0 would have a mean above 0, and bars made with it would be too long.
    """
    return np.where(share > TOLD_APART * noise, np.clip(share, 0, 1), 0.0)


@dataclass(frozen=True)
class Counts:
    """The whole numbers behind estimates, and how their laws depend on a key's frequency f and mean m.

    A report names a key, for or against it, or does not. `named` counts both, `signed` counts for minus against. Per
    report they have the means idle + gain f and signed_gain m, and the variances noise . (1, f, f (1 - f)) and
    signed_noise . (1, f) - (signed_gain m)^2, if nothing was `drawn`. `hubbub.server.intervals` makes intervals of
    them.
    """

    #: Reports that could have named the key: one number for all keys, or one for each.
    reports: Int64s | int
    named: Int64s | None = None
    idle: float = 0.0
    gain: float = 1.0
    noise: tuple[float, float, float] = (0.0, 0.0, 0.0)
    signed: Int64s | None = None
    signed_gain: float = 1.0
    signed_noise: tuple[float, float] = (0.0, 0.0)
    #: Reports for or against a key, where those of other keys are among them, as many for as against: they add to the
    #: variance of `signed`, which is this many at least.
    around: Int64s | None = None
    #: Intervals are so many times as wide as the counts alone make them, where other keys add to an estimate something
    #: that is no chance of these reports: with rows that people share, keys that are alike in most of them.
    wider: Floats | float = 1.0
    #: The most that the first of `signed_noise` can be, where it is told by reports.
    others: float = 0.0
    #: The probability with which an entry of a key that counts might not have: 1 where people are drawn at random, and
    #: where records are sampled down, the share that is dropped of them. Then the number of holders varies, too.
    drawn: float = 0.0
    #: No more of all people than this can have been drawn for one key, in terms of the variance that it makes.
    drawn_most: float = np.inf
    #: How many of `reports` a person makes, of whom drawing decides at once.
    answers: int = 1

    @property
    def frequency(self) -> Floats:
        """Unbiased, where there are reports. Where names are not counted, all values are 1, and it is the mean."""
        if self.named is None:
            return self.mean
        return np.asarray((self.named / np.maximum(self.reports, 1) - self.idle) / self.gain)

    @property
    def mean(self) -> Floats:
        """Unbiased, where there are reports."""
        assert self.signed is not None
        return np.asarray(self.signed / (np.maximum(self.reports, 1) * self.signed_gain))

    @property
    def told(self) -> Floats:
        """The frequency, where it can be told from 0; without a count of names, the size of the mean."""
        reports = np.maximum(self.reports, 1)
        if self.named is None:
            noise = np.sqrt(self.voted(0.0) / reports) / self.signed_gain
            return np.asarray(told_apart(np.abs(self.mean), noise))
        return np.asarray(told_apart(self.frequency, np.sqrt(self.noise[0] / reports) / self.gain))

    @property
    def two_kinds(self) -> bool:
        """Whether holders vote so surely that their votes and those of others have to be told apart.

        Not if people are drawn, who are all of one kind then. Where holders vote rarely, all votes are nearly Poisson.
        """
        gain = self.signed_gain if self.named is None else self.gain
        return min(self.drawn, self.drawn_most) < 1 and not self.noise[2] and gain >= SURE

    def drawn_of(self, frequency: Any) -> Any:
        """`drawn`, as far as `drawn_most` lets it be for a key with this frequency."""
        share = np.maximum(np.clip(frequency, 0, 1), 1e-12)
        return np.minimum(self.drawn, self.drawn_most / share)

    def chance(self, frequency: Any) -> Any:
        """How much of the variance f (1 - f) of drawing holders at random is in the estimate of a frequency f.

        Who keeps an entry with probability p adds p (1 - p). If `drawn` is the mean of 1 - p over the entries that are
        kept, that is drawn f for all people together, and never more than f (1 - f). Where people make several reports
        each, a report has as many times as much of it. Where it speaks of one key only, those who were asked about it
        are drawn already.
        """
        already, missing = self.noise[2] / self.gain**2, np.maximum(1 - np.clip(frequency, 0, 1), 1e-12)
        drawn = np.minimum(self.drawn_of(frequency) / missing, 1)
        return already + (1 - already) * self.answers * drawn

    def sure_of(self, frequency: Any) -> Any:
        """The share s of all people who surely hold a key, if all others do with one probability p, by chance.

        With f = s + (1 - s) p, and (1 - s) p (1 - p) = drawn f.
        """
        share = np.clip(frequency, 0, 1)
        missing, drawn = 1 - share, self.drawn_of(share)
        sure = share * (missing - drawn) / np.maximum(missing - drawn * share, 1e-12)
        return np.where(drawn > 0, np.maximum(sure, 0), share)

    def voted(self, frequency: Any) -> Any:
        """The probability that a report is for or against a key with this frequency."""
        seen = self.signed_noise[0] + self.signed_noise[1] * frequency
        if self.around is None:
            return seen
        # Fewer than one standard deviation more than there would be without other keys are no sign of any.
        usual = self.reports * seen
        found = np.minimum(self.around / np.maximum(self.reports, 1), 1.0)
        return np.where(self.around > usual + np.sqrt(usual), found, seen)

    @property
    def square(self) -> Floats:
        """The least that the mean square of the values can be: (mean)^2 / frequency, as far as is told."""
        told = self.told
        return np.asarray(np.clip(self.mean, -told, told) ** 2 / np.maximum(told, 1e-12))


@dataclass(frozen=True)
class Spread:
    """The variance of an estimate where it is known for every truth t: absent - held t, or absent - held t^2 at most.

    `absent` is that for a key that nobody has. What holders have is no noise: of sets the mean square is t, of values
    (`squared`) at least t^2. Who put the estimate in the place of t would take noise for holders, and find some.
    """

    absent: Floats
    held: float
    squared: bool

    def at(self, truth: Floats) -> Floats:
        """The variance if this is the truth."""
        share = np.clip(truth, -1, 1) ** 2 if self.squared else np.clip(truth, 0, 1)
        return np.asarray(np.maximum(self.absent - self.held * share, 0))

    def limits(self, value: Floats, width: float, wider: Floats) -> tuple[Floats, Floats]:
        """The ends of all truths that are `width` standard errors of their own from the value (Wilson's interval).

        All variances are `wider` times as large.
        """
        slope, room = width**2 * self.held * wider, width**2 * self.absent * wider
        if self.squared:  # (1 + slope) t^2 - 2 value t + value^2 - room = 0
            middle = value / (1 + slope)
            half = np.sqrt(np.maximum(value**2 - (1 + slope) * (value**2 - room), 0)) / (1 + slope)
        else:  # t^2 - (2 value - slope) t + value^2 - room = 0
            middle = value - slope / 2
            half = np.sqrt(np.maximum(slope**2 / 4 - value * slope + room, 0))

        def end(sign: int) -> Floats:
            """No more than everybody holds a key, and no fewer than nobody."""
            root = middle + sign * half
            nobody = (root < 0) & (not self.squared)
            beyond = value + sign * np.sqrt(np.maximum(room - slope, 0))
            return np.where(nobody, value + sign * np.sqrt(room), np.where(np.abs(root) > 1, beyond, root))

        return end(-1), end(1)
