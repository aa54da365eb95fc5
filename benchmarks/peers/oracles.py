"""Runs the frequency oracles of pure-ldp and multi-freq-ldpy: one key per user. Needs no hubbub.

Reads {"epsilon", "keys", "data": [key of each user], "slow": users for those that hash every key for every report}
and answers with one row per oracle. Each is called as its documentation says, one report at a time.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np

Row = dict[str, Any]
#: Hash functions of pure-ldp's fast local hashing, the number its authors use.
POOL = 500


def pure_ldp(epsilon: float, keys: int, data: list[int], slow: int) -> list[Row]:
    import pure_ldp.frequency_oracles as oracles

    def pair(name: str, *given: Any, **named: Any) -> Callable[[], tuple[Any, Any]]:
        client, server = getattr(oracles, f"{name}Client"), getattr(oracles, f"{name}Server")
        return lambda: (client(epsilon, keys, *given, **named), server(epsilon, keys, *given, **named))

    def hadamard_response() -> tuple[Any, Any]:
        server = oracles.HadamardResponseServer(epsilon, keys)
        return oracles.HadamardResponseClient(epsilon, keys, server.get_hash_funcs()), server

    def count_mean_sketch() -> tuple[Any, Any]:
        server = oracles.CMSServer(epsilon, 256, 1024, is_hadamard=True)
        return oracles.CMSClient(epsilon, server.get_hash_funcs(), 1024, is_hadamard=True), server

    bits = math.log2(keys)
    cases = [
        ("local hashing (OLH)", pair("LH", use_olh=True), slow, 63 + 2),
        ("fast local hashing", pair("FastLH", k=POOL, use_olh=True), len(data), math.log2(POOL) + 2),
        ("unary encoding (OUE)", pair("UE", use_oue=True), len(data), keys),
        ("Hadamard mechanism", pair("HadamardMech", 1), len(data), bits + 1),
        ("Hadamard response", hadamard_response, len(data), bits + 1),
        ("Hadamard count mean sketch", count_mean_sketch, len(data), 8 + 10 + 1),
    ]
    return [
        attempt("pure-ldp", name, size, partial(_timed, make, data[:users], keys))
        for name, make, users, size in cases
    ]


def _timed(make: Callable[[], tuple[Any, Any]], data: list[int], keys: int) -> Row:
    making, (client, server) = lap(make)
    device, reports = lap(lambda: [client.privatise(key + 1) for key in data])
    absorbing, _ = lap(lambda: [server.aggregate(report) for report in reports])
    asking, found = lap(lambda: server.estimate_all(range(1, keys + 1), suppress_warnings=True))
    shares = np.asarray(found, dtype=float) / len(data)
    error = float(np.mean((shares - np.bincount(data, minlength=keys) / len(data)) ** 2)) * len(data)
    return {
        "users": len(data),
        "device": device / len(data),
        "absorb": absorbing / len(data),
        "decode": making + asking,
        "error": error,
    }


def multi_freq_ldpy(epsilon: float, keys: int, data: list[int], slow: int) -> list[Row]:
    from multi_freq_ldpy.pure_frequency_oracles import LH, SS, UE

    chosen = max(1, round(keys / (math.exp(epsilon) + 1)))
    cases = [
        ("local hashing (OLH)", LH.LH_Client, LH.LH_Aggregator_MI, slow, 63 + 2),
        ("unary encoding (OUE)", UE.UE_Client, UE.UE_Aggregator_MI, len(data), keys),
        ("subset selection", SS.SS_Client, SS.SS_Aggregator_MI, slow, chosen * math.log2(keys)),
    ]

    def measure(client: Any, server: Any, data: list[int]) -> Row:
        client(data[0], keys, epsilon)
        device, reports = lap(lambda: [client(key, keys, epsilon) for key in data])
        absorbing, _ = lap(lambda: server(reports, keys, epsilon))
        # The estimates are clipped at 0 and scaled to sum to 1: biased, so that no squared error is comparable.
        return {
            "users": len(data),
            "device": device / len(data),
            "absorb": absorbing / len(data),
            "decode": 0.0,
        }

    return [
        attempt("multi-freq-ldpy", name, size, partial(measure, client, server, data[:users]))
        for name, client, server, users, size in cases
    ]


def lap(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def attempt(library: str, oracle: str, bits: float, run: Callable[[], Row]) -> Row:
    """A row, or what went wrong."""
    row: Row = {"library": library, "oracle": oracle, "bytes": math.ceil(bits / 8)}
    try:
        return {**row, **run()}
    except Exception as problem:
        return {**row, "failed": f"{type(problem).__name__}: {problem}"}


def main() -> None:
    question = json.load(sys.stdin)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 (the generator that these libraries use)
    rows: list[Row] = []
    for library, run in (("pure-ldp", pure_ldp), ("multi-freq-ldpy", multi_freq_ldpy)):
        try:
            rows += run(question["epsilon"], question["keys"], question["data"], question["slow"])
        except Exception as problem:
            rows.append({"library": library, "oracle": "", "failed": f"{type(problem).__name__}: {problem}"})
    versions = {name: metadata.version(name) for name in ("pure-ldp", "multi-freq-ldpy", "numpy", "xxhash")}
    json.dump({"rows": rows, "versions": versions}, sys.stdout)


if __name__ == "__main__":
    main()
