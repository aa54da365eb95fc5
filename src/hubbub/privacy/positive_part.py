"""The mean positive part of a sum of many independent steps, never too small: what `hubbub.privacy.shuffle` adds up."""

from __future__ import annotations

import math

import numpy as np

from hubbub.primitives.arrays import Floats

#: The relative error of one rounding.
ROUNDING = 2.0**-53
#: What is charged for a few dozen roundings at once; library functions are taken to be within four each.
SLACK = 256 * ROUNDING
#: Terms that are smaller than exp(-40) of the largest are left out, and their sum is added as a bound.
_NEGLIGIBLE = 40.0
#: Frequencies beyond this many inverse blurs are left out, likewise.
_CUT = 6.0
#: Of so few steps all sums are listed.
_FEW = 64


def mean_positive_part(n: int, mass: Floats, gains: Floats, excess: float) -> float:
    """An upper bound on E[(X_1 + ... + X_n)_+] / n; X_i is gains[j] with probability mass[j], otherwise 0.

    With z = c + i w and c > 0, E[T_+] is the integral of E[exp(z T)] / z^2 over w, by 2 pi. It is summed in steps
    of 2 pi / L, for T = X_1 + ... + X_n + Gaussian noise of width `blur`. The result is not too small:
    - Noise raises E[T_+] (Jensen), by a factor of about 1 + (c blur)^2 / 2 = 1 + excess.
    - By Poisson summation the infinite sum is that of exp(c k L) E[(T - k L)_+] over all integers k. The term
      k = 0 is wanted, no other is negative, and L makes all others together about exp(-30) of it.
    - Left-out terms are replaced by bounds on their absolute values: beyond `cut` by the noise's, elsewhere
      by |phi(w)|^2 <= 1 - 2 p_0 p_1 (1 - cos(w (x_0 - x_1))), where phi belongs to the law p tilted by exp(c x).
    - Roundings are bounded term by term: an error e in phi changes phi^n by (|phi| + e)^n - |phi|^n at most.
    Only w near the peaks of the bound on |phi| are visited, and the larger n, the fewer there are.
    """
    if n <= _FEW:
        return _listed(n, mass, gains)
    if n * float(mass.sum()) < excess:
        # Hardly ever is more than one step taken: the positive part of a sum is at most the sum of positive parts.
        return float(mass @ np.maximum(gains, 0)) * (1 + SLACK)
    tilt = _saddle(n, mass, gains)
    growth = np.expm1(tilt * gains)
    log_scale = n * math.log1p(float(mass @ growth))
    if log_scale < -690:
        # Out of the range of doubles: x_+ <= exp(c x) / (e c), and the e pays for the rounding of log_scale.
        return math.exp(-690) / (tilt * n)
    tilted = mass * (1 + growth) / (1 + float(mass @ growth))
    center, size = float(tilted @ gains), float(tilted @ np.abs(gains))
    variance = float(tilted @ (gains - center) ** 2) + max(0.0, 1 - float(tilted.sum())) * center**2
    # exp(-30) of the tilted law lies beyond n * center + tail (Bernstein), and of what is wanted, below -length.
    jump = 10 * float(gains[0])
    tail = jump + math.sqrt(jump**2 + 60 * n * variance)
    length = max(n * center + tail, (30 + tilt**2 * n * variance / 2) / tilt)
    step = 2 * math.pi / length
    blur = math.sqrt(2 * excess) / tilt
    cut = _CUT / blur
    w = step * _nodes(n, 2 * float(tilted[0] * tilted[1]), float(gains[0] - gains[1]), step, cut)

    real, imaginary = np.zeros(len(w)), np.zeros(len(w))
    for p, x in zip(tilted, gains, strict=True):
        half = w * (x / 2)
        sine = np.sin(half)
        real -= 2 * p * sine * sine
        imaginary += 2 * p * sine * np.cos(half)
    floor = 2.0**-50
    square = np.maximum(real * (2 + real) + imaginary**2, floor - 1)
    log_modulus, argument = np.log1p(square) / 2, np.arctan2(imaginary, 1 + real)
    terms = np.exp(n * log_modulus - (blur * w) ** 2 / 2) / (tilt**2 + w**2)
    angle = n * argument + tilt * blur**2 * w - 2 * np.arctan2(w, tilt)
    first = 1 / tilt**2
    total = first + 2 * float(terms @ np.cos(angle))

    modulus = np.exp(log_modulus)
    off = SLACK * (w * size + np.abs(argument) - log_modulus) + np.where(square == floor - 1, modulus, 0)
    rounding = 2 * float(terms @ (np.expm1(n * np.log1p(off / modulus)) + SLACK * 16)) + SLACK * 16 * first
    skipped = math.exp(1 - _NEGLIGIBLE) * (math.pi / tilt / step + 2 * first)
    beyond = 2 * math.exp(-(_CUT**2) / 2) * (1 / (cut * step) + 1 / cut**2)
    log_scale += (tilt * blur) ** 2 / 2
    log_scale += SLACK * (n * float(mass @ np.abs(growth)) + abs(log_scale) + 16)
    whole = math.exp(log_scale) * (total + rounding + skipped + beyond) * step / (2 * math.pi)
    # Where all X_i are 0, the noise alone is summed: at least E[Z_+] = blur / sqrt(2 pi) of it can be taken off.
    silent = 1 - float(mass.sum()) - SLACK
    if silent > 0:
        log_silent = n * math.log(silent)
        whole -= math.exp(log_silent + SLACK * (log_silent - 1)) * blur / math.sqrt(2 * math.pi)
    return whole / n


def _listed(n: int, mass: Floats, gains: Floats) -> float:
    """The same for few steps: over all ways to have n or fewer of the gains, with every rounding charged."""
    counts = np.stack(np.meshgrid(*[np.arange(n + 1)] * len(mass), indexing="ij")).reshape(len(mass), -1)
    counts = np.vstack([counts, n - counts.sum(axis=0)])[:, counts.sum(axis=0) <= n]
    each = np.append(mass, max(0.0, 1 - float(mass.sum())) + 16 * ROUNDING)
    parts = counts * np.log(each)[:, None]
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    ways = factorials[n] - factorials[counts].sum(axis=0)
    odds = np.exp(parts.sum(axis=0) + ways + SLACK * (n + np.abs(parts).sum(axis=0) + factorials[n]))
    steps = counts[:-1] * gains[:, None]
    sums = np.maximum(steps.sum(axis=0) + SLACK * np.abs(steps).sum(axis=0), 0)
    return float(odds @ sums) * (1 + SLACK * len(odds)) / n


def _saddle(n: int, mass: Floats, gains: Floats) -> float:
    """The tilt c that makes exp(n log E[exp(c X)]) / c^2 smallest; any c > 0 would give a bound."""
    pairs = [(float(p), float(x)) for p, x in zip(mass, gains, strict=True)]

    def slope(tilt: float) -> float:
        weights = [p * math.exp(tilt * x) for p, x in pairs]
        whole = 1 + sum(p * math.expm1(tilt * x) for p, x in pairs)
        return n * sum(weight * x for weight, (_, x) in zip(weights, pairs, strict=True)) / whole - 2 / tilt

    low = high = min(1 / math.sqrt(n * float(mass @ gains**2)), 1 / float(gains[0]))
    while slope(high) < 0:
        high *= 2
    while slope(low) > 0:
        low /= 2
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return high


def _nodes(n: int, product: float, period: float, step: float, cut: float) -> Floats:
    """The integers j >= 1 with j * step <= cut where (1 - product (1 - cos(j step period)))^(n/2) > exp(-40)."""
    last = math.floor(cut / step)
    dip = -math.expm1(-2 * _NEGLIGIBLE / n)
    if dip >= 2 * product:
        return np.arange(1, last + 1, dtype=np.float64)
    reach = math.acos(1 - dip / product) / period
    peaks = np.arange(math.floor(cut * period / (2 * math.pi)) + 2) * (2 * math.pi / period)
    start = np.maximum(np.floor((peaks - reach) / step), 1)
    stop = np.minimum(np.ceil((peaks + reach) / step), last)
    count = np.maximum(stop - start + 1, 0).astype(np.int64)
    offset = np.repeat(start - np.cumsum(count) + count, count)
    return offset + np.arange(count.sum())
