"""Runs OpenDP's ALP queryable. Needs no hubbub.

Reads {"keys", "counts", "absent", "total", "largest", "scale"}; answers with times, estimates and the array's size.
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
        scale=question["scale"],
        total_limit=total,
        value_limit=question["largest"],
    )
    data = dict(zip(keys, question["counts"], strict=True))
    building, ask = best(lambda: make(data))
    asked = keys[:: max(1, len(keys) // 2000)]
    asking, _ = best(lambda: [ask(key) for key in asked])
    json.dump(
        {
            "version": metadata.version("opendp"),
            "build": building,
            "query": asking / len(asked),
            # Its projection has total * 50 / 4 cells, rounded up to a power of two, one byte each; it has no file.
            "cells": 1 << (total * 50 // 4 - 1).bit_length(),
            "found": [float(ask(key)) for key in keys],
            "absent": [float(ask(key)) for key in question["absent"]],
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
