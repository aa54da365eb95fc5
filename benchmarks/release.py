"""Releases against OpenDP's ALP queryable on the same table: build, size, queries, error by true count.

    python benchmarks/release.py [--entries 10000] [--large]

OpenDP is optional (pip install opendp); without it only our own rows are printed. Times are the best of three,
in one process, so ratios hold even where the machine is slow. `--large` builds 10 million entries as well.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubbub.device.coins import SecretCoins
from hubbub.release import Goal, Release, build, plan
from hubbub.release.alp import Alp
from hubbub.release.artifact import Parameters
from hubbub.release.vector import make_vector

LARGEST = 5000
BANDS = ((1, 1), (2, 9), (10, 99), (100, LARGEST))
Row = dict[str, Any]


def table(entries: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Zipf counts from 5000 down to 1, on keys drawn from 2^32."""
    rng = np.random.default_rng(1)
    keys = rng.permutation(np.unique(rng.integers(0, 1 << 32, 2 * entries, dtype=np.uint64)))[:entries]
    return keys, np.maximum(1, np.rint(LARGEST / np.arange(1, entries + 1))).astype(np.int64)


def best(run: Callable[[], Any], times: int = 3) -> tuple[float, Any]:
    """Shortest wall time of several runs, and the last result."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


def errors(found: NDArray[np.float64], truth: NDArray[np.int64], absent: NDArray[np.float64]) -> Row:
    off = np.abs(found - truth)
    bands = {f"{low}-{high}": float(off[(truth >= low) & (truth <= high)].mean()) for low, high in BANDS}
    return {"nonzero": float(off.mean()), "absent": float(np.abs(absent).mean()), **bands}


def ours(name: str, parameters: Parameters, keys: Any, counts: Any, absent: Any) -> Row:
    vector, _ = make_vector(parameters.values, keys, counts)
    seconds, release = best(lambda: Release.project(parameters, vector, SecretCoins()))
    with tempfile.TemporaryDirectory() as folder:
        size = release.save(Path(folder) / "counts.hub")
        opened = Release.open(Path(folder) / "counts.hub")
        asking, answers = best(lambda: opened.query(keys))
        zeros = opened.query(absent).value
    row = {"name": name, "build": seconds, "bytes": size, "query": asking / len(keys)}
    return {**row, **errors(answers.value, counts, zeros)}


def opendp(total: int, keys: Any, counts: Any, absent: Any) -> Row | None:
    try:
        import opendp.prelude as dp
    except ImportError:
        return None
    dp.enable_features("contrib")
    domain = dp.map_domain(dp.atom_domain(T="u32"), dp.atom_domain(T="i32"))
    metric = dp.l01inf_distance(dp.absolute_distance(T="i32"))
    make = dp.m.make_alp_queryable(domain, metric, scale=1.0, total_limit=total, value_limit=LARGEST)
    data = dict(zip(keys.tolist(), counts.tolist(), strict=True))
    seconds, ask = best(lambda: make(data))
    asked = keys[:: max(1, len(keys) // 2000)].tolist()
    asking, _ = best(lambda: [ask(key) for key in asked])
    found = np.array([ask(key) for key in keys.tolist()])
    zeros = np.array([ask(key) for key in absent[:2000].tolist()])
    # Its projection has total * 50 / 4 cells, rounded up to a power of two, one byte each; it has no file.
    cells = 1 << (total * 50 // 4 - 1).bit_length()
    row = {"name": "OpenDP ALP", "build": seconds, "bytes": cells, "query": asking / len(asked)}
    return {**row, **errors(found, counts, zeros)}


def show(rows: list[Row]) -> None:
    bands = [f"{low}-{high}" for low, high in BANDS]
    heads = ["build ms", "bytes", "us/query", "error: all", "absent", *(f"count {band}" for band in bands)]
    print(f"{'':<22}" + "".join(f"{head:>15}" for head in heads))
    for row in rows:
        cells = [f"{1e3 * row['build']:.1f}", f"{row['bytes']:,}", f"{1e6 * row['query']:.2f}"]
        cells += [f"{row[name]:.2f}" for name in ("nonzero", "absent", *bands)]
        print(f"{row['name']:<22}" + "".join(f"{cell:>15}" for cell in cells))


def large() -> None:
    """Ten million entries: time, file and the most memory the process has used."""
    rng = np.random.default_rng(1)
    entries = 10_000_000
    keys = rng.permutation(np.arange(entries, dtype=np.uint64) * np.uint64(400))
    counts = np.minimum(LARGEST, rng.zipf(1.8, entries))
    goal = Goal(
        epsilon=1, universe=1 << 32, max_nonzero=entries, max_value=LARGEST, max_sum=1.8e8, algorithm="alp"
    )
    start = time.perf_counter()
    made = build((keys, counts), goal).release
    seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        size = made.save(Path(folder) / "large.hub")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    error = np.abs(made.query(keys[:20_000]).value - counts[:20_000]).mean()
    print(
        f"{entries:,} entries, sum {counts.sum():,}: built in {seconds:.0f} s, {size:,} bytes, "
        f"peak memory {peak:.2f} GiB, mean error {error:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--large", action="store_true", help="also build 10 million entries")
    options = parser.parse_args()
    keys, counts = table(options.entries)
    absent = np.random.default_rng(2).integers(0, 1 << 32, 20_000, dtype=np.uint64)
    total = int(1.1 * counts.sum())
    goal = Goal(
        epsilon=1,
        universe=1 << 32,
        max_nonzero=options.entries,
        max_value=LARGEST,
        max_sum=total,
        algorithm="alp",
    )
    planning, planned = best(lambda: plan(goal), times=1)
    base = planned.parameters
    cells = 1 << (total * 50 // 4 - 1).bit_length()
    same = Alp.make(base.values, 1.0, span=cells, levels=LARGEST // 2, gap=2)
    exact = Alp.make(base.values.model_copy(), 1.0, span=cells, levels=LARGEST, gap=1)
    print(
        f"{options.entries:,} Zipf counts up to {LARGEST}, keys in 2^32, epsilon 1, sum declared {total:,}\n"
    )
    rows = [
        ours("hubbub, planned alp", base, keys, counts, absent),
        ours("hubbub, same bits c=2", base.model_copy(update={"parts": (same,)}), keys, counts, absent),
        ours("hubbub, same bits c=1", base.model_copy(update={"parts": (exact,)}), keys, counts, absent),
    ]
    peer = opendp(total, keys, counts, absent)
    show([*rows, *([peer] if peer else [])])
    print(f"\nplanning took {1e3 * planning:.0f} ms")
    if peer:
        for row in rows[:2]:
            print(
                f"{row['name']}: build {peer['build'] / row['build']:.1f}x faster, queries "
                f"{peer['query'] / row['query']:.0f}x faster per key, file {peer['bytes'] / row['bytes']:.1f}x "
                f"smaller, error {row['nonzero']:.2f} against {peer['nonzero']:.2f}"
            )
    else:
        print("OpenDP is not installed: pip install opendp adds the comparison.")
    if options.large:
        large()


if __name__ == "__main__":
    main()
