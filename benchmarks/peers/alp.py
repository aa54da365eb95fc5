"""Runs OpenDP's ALP queryable. Needs no hubbub.

Reads {"keys", "counts", "absent", "total", "largest", "epsilon", "repeats"}; answers with times, the estimates of so
many releases, the array's size and the epsilon for one unit of one entry as the library itself reckons it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any


def best(run: Callable[[], Any], times: int = 3) -> tuple[float, Any]:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


def main() -> None:
    import opendp.prelude as dp

    question = json.load(sys.stdin)
    keys, total = question["keys"], question["total"]
    dp.enable_features("contrib")
    make = dp.m.make_alp_queryable(
        dp.map_domain(dp.atom_domain(T="u32"), dp.atom_domain(T="i32")),
        dp.l01inf_distance(dp.absolute_distance(T="i32")),
        scale=question["epsilon"],
        total_limit=total,
        value_limit=question["largest"],
    )
    # "scale" is epsilon over the sensitivity (0.16); another version could mean the inverse, so it is asked.
    spent = make.map((1, 1, 1))
    if abs(spent - question["epsilon"]) > 1e-6 * question["epsilon"]:
        raise SystemExit(f"OpenDP spends epsilon {spent} where {question['epsilon']} was asked for")
    data = dict(zip(keys, question["counts"], strict=True))
    building, ask = best(lambda: make(data))
    asked = keys[:: max(1, len(keys) // 2000)]
    asking, _ = best(lambda: [ask(key) for key in asked])
    releases = [make(data) for _ in range(question["repeats"])]
    json.dump(
        {
            "version": metadata.version("opendp"),
            "build": building,
            "query": asking / len(asked),
            "epsilon": spent,
            # Its projection has total * epsilon * 50 / 4 cells, rounded up to a power of two, one byte each; no file.
            "cells": 1 << (int(total * question["epsilon"] * 50 / 4) - 1).bit_length(),
            "found": [[float(ask(key)) for key in keys] for ask in releases],
            "absent": [[float(ask(key)) for key in question["absent"]] for ask in releases],
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
