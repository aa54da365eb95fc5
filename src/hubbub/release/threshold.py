"""List the entries whose noisy value is large: Algorithm 6 (pure) and Algorithm 9 (with delta).

Pure: every one of up to 2^64 entries is noised, empty ones too. How many empty entries pass the threshold is
one binomial draw, which ones a uniform subset, how far they pass a geometric draw: never a loop over entries.
With delta: only entries that are not empty are noised, and the threshold hides whether they were.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from pydantic import Field

from hubbub.primitives.arrays import Int64s, UInt64s
from hubbub.primitives.coins import Coins
from hubbub.release.binomial import binomial, skip, subset
from hubbub.release.keyspace import KeySpace
from hubbub.release.noise import Scale, add_noise, beyond, least_with_tail, round_to_breaks, tail_up
from hubbub.release.part import Answers, Arrays, Part, Query, int_type, noise_reach
from hubbub.release.users import Users
from hubbub.release.vector import Values, Vector


class Threshold(Part):
    """(epsilon, delta)-DP; pure when delta is 0. Signed values are listed when they are large either way.

    Pure (Lemma 5.1; the test in step 2 of Algorithm 6 is on the noisy value). Had every entry been
    noised, cutting below t would be post-processing of Algorithm 1. For an empty entry the code draws
    "passes" with probability q' instead of q = P(noise >= t), q <= q' <= q (1 + 2^-47), and then the exact
    law above t. A larger q' makes an empty entry likelier to be listed and less likely to be absent. Without
    signs both are the side with room: against an entry of D steps the odds of being listed at y are
    exp(D / s) too low for y >= D and exp((2y - D) / s) too low below. With signs, and y opposite to the
    entry, they can be exp(D / s) too high, so there 1 / s is 2^-40 smaller, which covers the 2^-47.

    With delta (Lemma 5.6). Let tau = P(noise >= t - one unit), which counts the draw that lands on t
    itself. Reals below one unit are first rounded to 0 or one unit, so such an entry x is listed with
    probability x tau. Walk from a neighbour to the other: first by a within entries of at most 1, then by
    b within entries of at least 1, then by c again within small ones, a + b + c <= 1. The ends cost a tau
    and exp(epsilon b) c tau in delta, the middle exp(epsilon b) in odds. a + c exp(epsilon b) is at most
    max(1, exp(epsilon - 1) / epsilon): that times tau is kept at or below delta (the paper has
    (1 + e^epsilon) tau). Counts move in whole steps, so b = 0 or a + c = 0 and delta = tau. Signed values
    are listed only where the noisy value has the true sign, so neither side reveals more.

    With delta, per user. Now the vectors differ in at most k entries, by at most B steps each, and epsilon
    below is k B times the part's own. Call an entry *new* if it is 0 in one of the two vectors, or has two
    signs, and for reals also if it is below one step in one of them. A new entry is at most B steps large in
    both (reals: B + 1 after rounding), so either lists it with probability at most tau = P(noise >= t - B),
    or P(noise >= t - B - 1). Two laws that both give at least 1 - tau to "not listed" are at most tau apart
    in total variation. The other entries have one sign and at least one step in both, so listing them is
    post-processing of Algorithm 1. Entries are noised independently. So walk from one vector to the other by
    first exchanging the new entries, at most k of them, which moves the probability of anything by at most k
    tau, and then the others, which changes it by a factor of at most exp(epsilon). Either vector can be the
    first, so delta = k tau is enough: a union bound over k keys that may appear. k new entries and none beside
    need 1 - (1 - tau)^k, which is nearly as much. Rounding small reals up to one unit is needed only where many
    small changes can be spread over any number of entries, so here it is left out.
    """

    name: Literal["threshold"] = "threshold"
    scale: Scale
    threshold: int = Field(ge=1, le=1 << 60, description="least listed value, in steps of the grid")
    limit: int = Field(ge=1, le=1 << 62)
    changed: int | None = Field(
        default=None,
        ge=1,
        description="with delta: entries a user can change; none given: any number, by 1 in total",
    )

    @classmethod
    def make(
        cls,
        values: Values,
        keys: KeySpace,
        epsilon: float,
        delta: float = 0.0,
        extra: float | None = None,
        users: Users | None = None,
    ) -> Threshold:
        """Parameters for a budget per unit of value; `extra`: how many empty entries may be listed in the mean (pure).

        Without it t is the paper's 2 ln(d) / epsilon, which lists any with probability below 1 / d.
        """
        scale = values.scale(epsilon)
        if values.signed and not delta:
            scale = scale[0], scale[1] - 1
        if delta and users:
            jump = users.steps(values) + (1 if values.kind == "reals" else 0)
            threshold = jump + least_with_tail(scale, delta / users.max_entries * (1 - 1e-12))
        elif delta:
            worst = 1.0
            if values.kind == "reals" and epsilon > 1:
                worst = math.exp(epsilon - 1) / epsilon
            threshold = (1 << values.fraction_bits) + least_with_tail(scale, delta / worst * (1 - 1e-12))
        elif extra is None:
            threshold = math.ceil(2 * math.log(keys.universe) * scale[0] / scale[1])
        else:
            sides = 2 if values.signed else 1
            threshold = least_with_tail(scale, min(0.25, extra / keys.universe / sides))
        threshold = max(threshold, 1)
        limit = max(values.limit(scale), threshold + 64 * -(-scale[0] // scale[1]))
        changed = users.max_entries if delta and users else None
        return cls(
            epsilon=epsilon, delta=delta, scale=scale, threshold=threshold, limit=limit, changed=changed
        )

    def project(self, vector: Vector, values: Values, keys: KeySpace, coins: Coins) -> Arrays:
        exact = vector.on_grid(coins)
        if self.delta and self.changed is None:
            exact = _small_to_one_unit(exact, values, coins)
        noised = add_noise(exact, self.scale, self.limit, coins)
        if self.delta:
            listed = (np.sign(noised) == np.sign(exact)) & (np.abs(noised) >= self.threshold)
        else:
            listed = (np.abs(noised) if values.signed else noised) >= self.threshold
        ids, found = vector.ids[listed], noised[listed]
        if not self.delta:
            more_ids, more = self._empty_entries(vector, values, keys, coins)
            ids, found = np.concatenate([ids, more_ids]), np.concatenate([found, more])
        order = np.argsort(ids)
        kinds = self.shapes(values, keys)
        return {"ids": ids[order].astype(kinds["ids"][0]), "values": found[order].astype(kinds["values"][0])}

    def _empty_entries(
        self, vector: Vector, values: Values, keys: KeySpace, coins: Coins
    ) -> tuple[UInt64s, Int64s]:
        """The empty entries that pass the threshold, and their noise."""
        mantissa, exponent = tail_up(self.scale, self.threshold)
        sides = 2 if values.signed else 1
        empty = keys.universe - len(vector.ids)
        count = binomial(coins, empty, sides * mantissa, exponent)
        ids = skip(subset(coins, empty, count), vector.ids)
        found = self.threshold + beyond(count, self.scale, self.limit - self.threshold, coins)
        if values.signed:
            negative = np.fromiter((coins.below(2) for _ in range(count)), dtype=np.bool_, count=count)
            found = np.where(negative, -found, found)
        return ids, found

    def shapes(self, values: Values, keys: KeySpace) -> dict[str, tuple[str, int | None]]:
        return {
            "ids": ("<u4" if keys.universe <= 1 << 32 else "<u8", None),
            "values": (int_type(self.limit), None),
        }

    def refine(self, arrays: Arrays, ids: UInt64s, answers: Answers, query: Query) -> None:
        """Listed keys have their noisy value; of the others it is known that they are not much above t."""
        listed = arrays["ids"]
        if len(listed):
            places = np.minimum(np.searchsorted(listed, ids.astype(listed.dtype)), len(listed) - 1)
            found = listed[places] == ids
            noised = arrays["values"][places[found]].astype(np.float64)
            reach = noise_reach(self.scale, query.alpha / 2) + query.slack
            low, high = noised - reach, noised + reach
            if self.delta and self.changed is None and query.slack:
                unit = 1 << query.values.fraction_bits
                low, high = (
                    np.where(np.abs(low) <= unit, np.minimum(low, 0), low),
                    np.where(np.abs(high) <= unit, np.maximum(high, 0), high),
                )
            answers.settle(noised, low, high, "listed", found)
        most = self.threshold - 1 + noise_reach(self.scale, query.alpha) + query.slack
        answers.bound(-most, most)


def _small_to_one_unit(exact: Int64s, values: Values, coins: Coins) -> Int64s:
    """Step 1 of Algorithm 9: magnitudes below one unit become 0 or one unit, their mean kept."""
    unit = 1 << values.fraction_bits
    small = (exact != 0) & (np.abs(exact) < unit)
    ones = round_to_breaks(np.abs(exact[small]), np.array([0, unit], dtype=np.int64), coins)
    rounded = exact.copy()
    rounded[small] = np.sign(exact[small]) * ones * unit
    return rounded
