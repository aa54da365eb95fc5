"""Heights from noisy unary numbers: the walk of Algorithm 3, its interval, and two posterior estimators.

For one key, f(n) = (ones - zeros) among its first n bits. Bits up to the true height are 1 with probability
1 - p, later ones with probability q, the share of ones in the array (flips and collisions alike).

argmax (default, as published): the average of all n that maximise f.

interval: all n between the first and the last with f(n) >= max f - D. From the true height on, f is a walk
with up-probability q, and its rise above f(height) has P(rise > D) = rho(q)^(D + 1), rho(q) = q / (1 - q)
(Lemma 4.5); backwards from it the same with p. So the true height is outside with probability at most
rho(p)^(D + 1) + rho(q)^(D + 1), and D is the smallest that makes this at most alpha. This holds for every
true height; it takes the bits of other keys that a key collides with for independent, which random hashing makes them.

median, mean (opt-in): of the posterior over heights under a uniform prior. They are model-based: less
error and less bias where values are spread out and the array is loaded, more where most are tiny. Their
interval is a credible interval, right on average over that prior.

difference (opt-in, signed values): argmax of the positive side minus argmax of the negative side, the
reduction to two vectors of Section 2. argmax over both sides at once (Section 10) has less error.

Reading stops when f has fallen so far below its maximum that it would return with odds below 2^-40.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hubbub.primitives.arrays import Bytes, Floats, Int64s
from hubbub.release.part import Query

#: read(rows, horizon, side) -> the first `horizon` bits of these keys.
Reader = Callable[[Int64s, int, int], Bytes]

_GIVE_UP = 2.0**-40
#: Bits that are looked at together; keeps the arrays of a batch in the cache.
_CELLS = 1 << 18


@dataclass(frozen=True)
class Heights:
    """Estimated heights, and the lowest and highest that the bits do not rule out."""

    height: Floats
    low: Int64s
    high: Int64s


class Model(NamedTuple):
    """How likely a one is: 1 - p up to the height, q[level] after it (one number, or one per level)."""

    p: float
    q: Floats


def odds(probability: float) -> float:
    """rho = q / (1 - q): the chance that a walk with this up-probability ever rises by one."""
    return probability / (1 - probability) if probability < 0.5 else 1.0


def fall_for(chance: float, *up: float) -> int | None:
    """The smallest D with sum of rho^(D + 1) <= chance; None when a walk does not fall."""
    rhos = [odds(probability) for probability in up]
    if max(rhos) >= 1:
        return None
    worst = max(rhos)
    fall = max(0, math.ceil(math.log(chance / len(rhos)) / math.log(worst)) - 1) if worst > 0 else 0
    while fall > 0 and sum(rho**fall for rho in rhos) <= chance:
        fall -= 1
    return fall


def estimate(
    read: Reader, count: int, levels: int, p: float, density: Floats, sides: int, query: Query
) -> Heights:
    """Heights of many keys, reading only as many bits as each needs."""
    models = [Model(p, density[min(side, len(density) - 1)]) for side in range(sides)]
    crowded = float(density.max())
    stop = fall_for(min(_GIVE_UP, query.alpha / 1024), crowded)
    result = Heights(np.zeros(count), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64))
    unsettled = np.arange(count)
    # A walk falls by 1 - 2q per step, and three of its deviations more.
    first = levels if stop is None else math.ceil((stop + 3 * math.sqrt(stop)) / (1 - 2 * crowded))
    horizon = min(levels, max(64, first))
    while len(unsettled):
        late = []
        step = max(1, _CELLS // horizon)
        for start in range(0, len(unsettled), step):
            rows = unsettled[start : start + step]
            flags = [read(rows, horizon, side) for side in range(sides)]
            walks = [_walk(side) for side in flags]
            done = np.ones(len(rows), dtype=np.bool_)
            if horizon < levels:
                for path in walks:
                    done &= path.max(axis=1) - path[:, -1] > (levels if stop is None else stop)
            settled = _settle([side[done] for side in flags], [path[done] for path in walks], models, query)
            places = rows[done]
            result.height[places] = settled.height
            result.low[places], result.high[places] = settled.low, settled.high
            late.append(rows[~done])
        unsettled = np.concatenate(late)
        horizon = min(levels, 4 * horizon)
    return result


def _walk(flags: Bytes) -> NDArray[Any]:
    """f(0), f(1), ... for every key."""
    path = np.zeros((flags.shape[0], flags.shape[1] + 1), dtype=np.int32)
    np.cumsum(flags.astype(np.int8) * 2 - 1, axis=1, dtype=np.int32, out=path[:, 1:])
    return path


def _settle(flags: list[Bytes], walks: list[NDArray[Any]], models: list[Model], query: Query) -> Heights:
    path = _joined(walks)
    origin = path.shape[1] - walks[0].shape[1]
    if query.estimator in ("median", "mean"):
        return posterior(
            _joined([_log_odds(*pair) for pair in zip(flags, models, strict=True)]), origin, query
        )
    if query.estimator == "difference":
        height = argmax_average(walks[0]) - argmax_average(walks[1])
    else:
        height = argmax_average(path) - origin
    after = max(float(model.q.max()) for model in models)
    # With two sides, the walk back from the true height goes on past 0 into the other side's bits.
    before = models[0].p if len(walks) == 1 else max(models[0].p, after)
    fall = fall_for(query.alpha, before, after)
    low, high = near_maximum(path, path.shape[1] if fall is None else fall)
    return Heights(height, low - origin, high - origin)


def _joined(walks: list[NDArray[Any]]) -> NDArray[Any]:
    """One path from the most negative height to the most positive, if there are two sides."""
    return walks[0] if len(walks) == 1 else np.concatenate([walks[1][:, :0:-1], walks[0]], axis=1)


def argmax_average(path: NDArray[Any]) -> Floats:
    """Algorithm 3, steps 2 and 3: the average of all places where the path is highest."""
    top = path == path.max(axis=1, keepdims=True)
    average: Floats = (top @ np.arange(path.shape[1], dtype=np.float64)) / top.sum(axis=1)
    return average


def near_maximum(path: NDArray[Any], fall: int) -> tuple[Int64s, Int64s]:
    """First and last place where the path is within `fall` of its maximum."""
    near = path >= path.max(axis=1, keepdims=True) - fall
    return near.argmax(axis=1), path.shape[1] - 1 - near[:, ::-1].argmax(axis=1)


def _log_odds(flags: Bytes, model: Model) -> Floats:
    """log P(bits | height n) - log P(bits | height 0), for every n."""
    q = np.clip(model.q[: flags.shape[1]] if len(model.q) > 1 else model.q, 1e-9, 1 - 1e-9)
    one, zero = np.log((1 - model.p) / q), np.log(model.p / (1 - q))
    path = np.zeros((flags.shape[0], flags.shape[1] + 1))
    np.cumsum(np.where(flags == 1, one, zero), axis=1, out=path[:, 1:])
    return path


def posterior(log_odds: Floats, origin: int, query: Query) -> Heights:
    """Median or mean of the posterior over heights, and its credible interval."""
    weights = np.exp(log_odds - log_odds.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    total = np.cumsum(weights, axis=1)

    def quantile(share: float) -> Int64s:
        places: Int64s = np.minimum((total < share).sum(axis=1), log_odds.shape[1] - 1)
        return places

    if query.estimator == "mean":
        height = weights @ (np.arange(log_odds.shape[1], dtype=np.float64) - origin)
    else:
        height = (quantile(0.5) - origin).astype(np.float64)
    return Heights(height, quantile(query.alpha / 2) - origin, quantile(1 - query.alpha / 2) - origin)
