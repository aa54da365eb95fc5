"""The shuffle accountant: time, memory and precision over the number of reports.

    python benchmarks/shuffle.py [--epsilon 1] [--delta 1e-6]

The yardstick is the usual way to compute such bounds: condition on the number of clones and sum one pair of
binomial tails for each (Feldman, McMillan, Talwar 2021), over a window that leaves out 1e-20. It covers mechanisms
without outcomes that neither record favours, so both are run for randomized response. It needs scipy
(optional); without it only our own times are printed. Times are the best of three, in one process.
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hubbub.device.coins import UNIT, favoured_weight
from hubbub.errors import Refused
from hubbub.privacy.compose import compose
from hubbub.privacy.shuffle import Crowd, any_mechanism, response

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 1_000_000_000, 1_000_000_000_000)


def best(run: Callable[[], Any], times: int = 3) -> tuple[float, Any]:
    """Shortest wall time of several runs, and the last result."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


def by_tails(crowd: Crowd, epsilon: float) -> float:
    """delta(epsilon) of a crowd without neutral outcomes, one pair of binomial tails per number of clones."""
    from scipy.stats import binom

    n, alpha = crowd.reports, math.exp(epsilon)
    own, other, active = (
        float(x) for x in (crowd.own / crowd.cover, crowd.other / crowd.cover, 2 * crowd.cover)
    )
    width = 9.6 * math.sqrt(n * active * (1 - active)) + 60
    clones = np.arange(max(1, int(n * active - width)), min(n, int(n * active + width)) + 1, dtype=np.float64)
    gap = (own - other) * (1 + alpha)
    level = clones * (alpha * own - other) / gap
    last = np.floor(level)
    mean = clones / 2 * binom.sf(last - 1, clones - 1, 0.5) - level * binom.sf(last, clones, 0.5)
    return float(binom.pmf(clones, n, active) @ (gap * mean)) / n


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-6)
    options = parser.parse_args()
    weight = favoured_weight(options.epsilon)
    print(f"Collision, 4 entries, 17 buckets: central epsilon at delta = {options.delta:g}")
    print(f"{'reports':>20} {'epsilon':>12} {'seconds':>9}")
    for n in SIZES:
        crowd = response(n, 4, 17, weight, UNIT)
        seconds, epsilon = best(lambda crowd=crowd: crowd.epsilon(options.delta))
        print(f"{n:>20,} {epsilon:>12.6g} {seconds:>9.4f}")

    print(
        "\nRandomized response: one delta(epsilon), against one pair of binomial tails per number of clones"
    )
    print(f"{'reports':>20} {'ours':>9} {'tails':>9} {'ratio':>8} {'ours / theirs - 1':>18}")
    for n in SIZES[:-1]:
        crowd = any_mechanism(n, options.epsilon)
        epsilon = crowd.epsilon(options.delta)
        ours, value = best(lambda crowd=crowd, epsilon=epsilon: crowd.delta(epsilon))
        try:
            theirs, other = best(lambda crowd=crowd, epsilon=epsilon: by_tails(crowd, epsilon))
        except ImportError:
            print(f"{n:>20,} {ours:>9.4f} {'-':>9}")
            continue
        print(f"{n:>20,} {ours:>9.4f} {theirs:>9.4f} {theirs / ours:>8.1f} {value / other - 1:>18.1e}")

    print("\nTen rounds of Collision")
    for n in (10_000, 1_000_000):
        for method in ("loss", "basic"):
            rounds = [response(n, 4, 17, weight, UNIT)] * 10
            try:
                seconds, total = best(
                    lambda rounds=rounds, method=method: compose(rounds, options.delta, method), 1
                )
            except Refused as problem:
                print(f"{n:>20,} {method}: {problem}")
                continue
            print(f"{n:>20,} {method:<6} epsilon = {total.epsilon:.4g} in {seconds:.2f} s")
    print(f"\nPeak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
