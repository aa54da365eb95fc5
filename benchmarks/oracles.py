"""One key per user, the problem that other libraries solve: pure-ldp and multi-freq-ldpy beside hubbub.

    python benchmarks/oracles.py

The peers run in an environment of their own (benchmarks/peers). Those that hash every key for every report are timed
on a few users and scaled up, since their work is a loop over reports.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hubbub.device.client import Client, privatize
from hubbub.model.record import GRID, Entries
from hubbub.primitives.coins import SecretCoins, SystemSeeds
from hubbub.server.fold import aggregate
from page import LIGHT, MUTED, STRONG, Headline, Section, duration, prose, table, times
from peers.environment import ask
from timing import Row, best, task_of

EPSILON = 1.0
OURS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("local_hashing", "local hashing (OLH)", {}),
    ("local_hashing", "local hashing, as published", {"family": "prf"}),
    ("hadamard", "Hadamard response", {}),
)


def measure(users: int = 100_000, keys: int = 4096, peers: int = 5000, slow: int = 500) -> list[Row]:
    """Rows of all oracles: seconds per report on the device and the server, bytes, and users times squared error."""
    data = np.random.default_rng(1).integers(0, keys, users)
    asked = {"epsilon": EPSILON, "keys": keys, "data": data[:peers].tolist(), "slow": slow}
    answer = ask("oracles", asked)
    rows = [_ours(name, label, parameters, data, keys) for name, label, parameters in OURS]
    shared = {"all_users": users, "keys": keys, "versions": answer["versions"]}
    return [{**row, **shared} for row in [*rows, *answer["rows"]]]


def _ours(name: str, label: str, parameters: dict[str, Any], data: Any, keys: int) -> Row:
    task = task_of(name, keys, 1, **parameters)
    ids, ones = data.astype(np.uint64), np.full(len(data), GRID, dtype=np.int64)
    records = Entries(ids, ones, np.arange(len(data) + 1, dtype=np.int64))
    coins, seeds = SecretCoins(), SystemSeeds()
    privatize(task, records.slice(0, min(8192, len(data))), coins, seeds)
    bulk, (packed, _) = best(lambda: privatize(task, records, coins, seeds))
    client = Client(task)
    single, _ = best(lambda: [client.report({str(key)}) for key in data[:200].tolist()])
    absorbing, state = best(lambda: aggregate(task, packed))
    decoding, moments = best(lambda: task.mechanism.moments(state, task.keys, task.keys.all_ids()))
    truth = np.bincount(data, minlength=keys) / len(data)
    return {
        "library": "hubbub",
        "oracle": label,
        "bytes": task.mechanism.layout.width,
        "users": len(data),
        "device": single / min(200, len(data)),
        "bulk": bulk / len(data),
        "absorb": absorbing / len(data),
        "decode": decoding,
        "error": float(np.mean((moments.frequency - truth) ** 2)) * len(data),
    }


def server_seconds(row: Row) -> float:
    """The server's time for all users."""
    return float(row["absorb"] * row["all_users"] + row["decode"])


def text(rows: list[Row]) -> str:
    ran = [row for row in rows if "failed" not in row]
    cells = [
        [
            row["library"],
            row["oracle"],
            str(row["bytes"]),
            duration(row["device"]) + (f" ({duration(row['bulk'])})" if "bulk" in row else ""),
            duration(server_seconds(row)),
            f"{row['error']:.2f}" if "error" in row else "biased",
        ]
        for row in ran
    ]
    first = rows[0]
    broken = "".join(
        f" {row['library']}'s {row['oracle'] or 'oracles'} cannot run: `{row['failed']}`."
        for row in rows
        if "failed" in row
    )
    versions = first["versions"]
    fewer = " or ".join(f"{number:,}" for number in sorted({row["users"] for row in ran[len(OURS) :]}))
    words = prose(
        f"""One key of {first["keys"]:,} per user, {first["all_users"]:,} users, epsilon 1. Device: time per report,
        made one by one (in brackets: in bulk). Server: from reports to estimates of all keys; peers are timed on
        fewer users ({fewer}) and scaled up. Error: users times mean squared error of the shares, where the estimates
        are unbiased. Peers draw from pseudorandom generators with floating-point numbers; hubbub's times are for
        exact samplers with coins from the operating system."""
    )
    state_of_peers = prose(
        f"""Broken installs: pure-ldp cannot be imported as it is installed, because it needs statsmodels and
        scikit-learn and asks for neither; local hashing of both libraries fails with xxhash 4 (`Strings must be
        encoded before hashing`), so that xxhash below 4 has to be asked for.{broken} Versions: pure-ldp
        {versions["pure-ldp"]}, multi-freq-ldpy {versions["multi-freq-ldpy"]}, numpy {versions["numpy"]}, xxhash
        {versions["xxhash"]}."""
    )
    heads = ["library", "oracle", "bytes", "device, per report", "server", "n x MSE"]
    return "\n\n".join([words, table(heads, cells, words=2), state_of_peers])


def plot(rows: list[Row], figure: Any) -> None:
    ran = [row for row in rows if "failed" not in row][::-1]
    axes = figure.subplots()
    colours = [{"hubbub": STRONG, "pure-ldp": MUTED}.get(row["library"], LIGHT) for row in ran]
    bars = axes.barh(range(len(ran)), [server_seconds(row) for row in ran], color=colours)
    axes.bar_label(bars, [duration(server_seconds(row)) for row in ran], fontsize=8, padding=2)
    axes.set_yticks(range(len(ran)), [f"{row['library']}: {row['oracle']}" for row in ran])
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.set_xlabel("seconds on the server")


def headlines(rows: list[Row]) -> list[Headline]:
    here = server_seconds(rows[0])
    found = []
    for library in ("pure-ldp", "multi-freq-ldpy"):
        twins = [row for row in rows if (row["library"], row["oracle"]) == (library, rows[0]["oracle"])]
        same = [row for row in twins if "failed" not in row]
        what = f"local hashing on the server, against {library}"
        found += [Headline(what, times(server_seconds(row) / here)) for row in same]
    return found


SECTION = Section(
    "oracles",
    "One key per user: other libraries",
    measure,
    text,
    quick={"users": 5000, "keys": 256, "peers": 500, "slow": 50},
    plot=plot,
    caption="Server time of frequency oracles",
    headlines=headlines,
)

if __name__ == "__main__":
    print(text(measure()))
