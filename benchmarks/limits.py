"""What limits the server and the device: each step beside the machine's own rate for the same kind of work.

The transform moves an array through memory a few times, so it is measured in copies of the array. Absorbing adds
to random places, so it is measured in plain random increments. Everything runs on one core.

    python benchmarks/limits.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hubbub.device.client import privatize
from hubbub.mechanisms.shared.hashed import Hashed, Int64s, UInt64s
from hubbub.model.hashing import bucket_bits, hash_entries, seed_rows
from hubbub.primitives.coins import SecretCoins, SystemSeeds
from hubbub.primitives.errors import optional
from hubbub.primitives.kernel import kernel
from hubbub.primitives.walsh import scatter, transform
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate
from page import LIGHT, MUTED, STRONG, Section, amount, duration, prose, table, times
from timing import Row, best, crowd, lap, reports_of, task_of

MECHANISMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sketch_response", {"seeds": 1}),
    ("collision", {}),
    ("coco", {"values": "signed"}),
)


@kernel
def _increments(total: Any, places: Any) -> None:
    for i in range(len(places)):
        total[places[i]] += 1


@kernel
def _level_by_level(data: Any) -> None:
    """The textbook transform: one pass over the whole array for each level."""
    half = 1
    while half < len(data):
        for block in range(0, len(data), 2 * half):
            for i in range(block, block + half):
                a, b = data[i], data[i + half]
                data[i] = a + b
                data[i + half] = a - b
        half *= 2


def measure(
    bits: Sequence[int] = (16, 18, 20, 22, 24), reports: int = 1 << 20, keys: int = 4096, entries: int = 64
) -> list[Row]:
    """Rows of three kinds: `transform` by size, `absorb` and `device` by mechanism."""
    optional("numba", "fast")
    rows = [_transform(m) for m in bits]
    rows += [_absorb(name, parameters, reports, keys, entries) for name, parameters in MECHANISMS]
    rows += [_device(name, parameters, reports // 10, keys, entries) for name, parameters in MECHANISMS]
    return rows


def _transform(bits: int) -> Row:
    data = np.random.default_rng(1).integers(-100, 100, 1 << bits)
    copy, textbook = np.empty_like(data), _level_by_level.compiled()
    textbook(copy)
    return {
        "kind": "transform",
        "bits": bits,
        "seconds": lap(lambda: transform(data)),
        "textbook": lap(lambda: textbook(data.copy())),
        "copy": lap(lambda: np.copyto(copy, data)),
    }


def _absorb(name: str, parameters: dict[str, Any], reports: int, keys: int, entries: int) -> Row:
    task = task_of(name, keys, entries, **parameters)
    mechanism, layout = task.mechanism, task.mechanism.layout
    assert isinstance(mechanism, Hashed)
    packed = reports_of(task, reports)
    aggregate(task, packed)
    total, state = best(lambda: aggregate(task, packed))
    some = layout.unpack(packed[: reports // 8])
    places = np.random.default_rng(1).integers(0, state.totals.size, 1 << 22)
    counters = np.zeros(state.totals.size, dtype=np.int64)
    plain = _increments.compiled()
    plain(counters, places[:8192])
    return {
        "kind": "absorb",
        "mechanism": name,
        "bytes": layout.width,
        "buckets": mechanism.buckets,
        "channels": mechanism.channels,
        "keys": keys,
        "entries": entries,
        "rate": reports / total,
        "singly": len(some) / lap(lambda: _scatter_each(task, mechanism, some, counters)),
        "unpack": lap(lambda: layout.unpack(packed)) / total,
        "increments": len(places) / lap(lambda: plain(counters, places)),
    }


def _scatter_each(task: Task, mechanism: Hashed, reports: UInt64s, total: Int64s) -> None:
    """Expand the seed of every report and add its votes, one report after the other."""
    rows = seed_rows(task.keys, np.ascontiguousarray(reports[:, 0]), bucket_bits(mechanism.buckets)).astype(
        np.int64
    )
    for votes in mechanism.votes(reports[:, 1:].astype(np.int64)):
        scatter(total, rows[:, 0].copy(), rows[:, 1:], votes.bucket, votes.values)


def _device(name: str, parameters: dict[str, Any], users: int, keys: int, entries: int) -> Row:
    task, people = task_of(name, keys, entries, **parameters), crowd(users, keys, entries)
    mechanism, layout = task.mechanism, task.mechanism.layout
    assert isinstance(mechanism, Hashed)
    coins, source = SecretCoins(), SystemSeeds()

    def run() -> Any:
        return privatize(task, people, coins, source)

    run()
    total, (packed, _) = best(run)
    reports = layout.unpack(packed)
    seeds = source.draw(layout.fields[0].bits, users)
    where = (mechanism.family, task.keys, seeds, people.ids, people.offsets, mechanism.buckets)
    return {
        "kind": "device",
        "mechanism": name,
        "entries": entries,
        "rate": users / total,
        "hash": lap(lambda: hash_entries(*where)) / total,
        "pack": lap(lambda: layout.pack(reports)) / total,
    }


def text(rows: list[Row]) -> str:
    return "\n\n".join(
        [
            prose(
                """One core. **The transform** reads and writes an array of 64-bit integers; the yardstick is a plain
                copy of the same array, which moves the same bytes once. *Level by level* is the textbook loop, one
                pass over the array for each of m levels."""
            ),
            _transform_table([row for row in rows if row["kind"] == "transform"]),
            prose(
                """**Absorbing** adds to one random place per report and bucket; the yardstick is a loop that does
                nothing but increment random places of an array of the same size. *Report by report* expands every
                seed and adds every vote; reports that share a seed can be added up first, which needs fewer
                places."""
            ),
            _absorb_table([row for row in rows if row["kind"] == "absorb"]),
            prose(
                """**On the device** a report costs its entries' hashes and its coins, which are drawn and used in one
                compiled loop (the rest)."""
            ),
            _device_table([row for row in rows if row["kind"] == "device"]),
        ]
    )


def _transform_table(rows: list[Row]) -> str:
    cells = [
        [
            f"2^{row['bits']}",
            duration(row["seconds"]),
            times(row["textbook"] / row["seconds"]),
            f"{16 * 2 ** row['bits'] / row['copy'] / 1e9:.0f} GB/s",
            f"{row['seconds'] / row['copy']:.1f}",
            f"{row['textbook'] / row['copy']:.0f}",
        ]
        for row in rows
    ]
    heads = [
        "integers",
        "transform",
        "faster than level by level",
        "copy",
        "in copies",
        "level by level, in copies",
    ]
    return table(heads, cells)


def _absorb_table(rows: list[Row]) -> str:
    cells = [
        [
            f"{row['mechanism']}, {row['bytes']} bytes",
            amount(row["rate"], "/s"),
            times(row["rate"] / row["singly"]),
            f"{row['buckets'] * row['channels']}",
            amount(row["increments"], "/s"),
            f"{row['singly'] * row['buckets'] * row['channels'] / row['increments']:.0%}",
            f"{row['unpack']:.0%}",
        ]
        for row in rows
    ]
    heads = ["mechanism", "absorb", "faster than report by report", "places", "plain increments"]
    return table([*heads, "report by report, of plain increments", "unpacking, of the time"], cells)


def _device_table(rows: list[Row]) -> str:
    cells = [
        [
            row["mechanism"],
            amount(row["rate"], "/s"),
            f"{row['hash']:.0%}",
            f"{row['pack']:.0%}",
            f"{max(0.0, 1 - row['hash'] - row['pack']):.0%}",
        ]
        for row in rows
    ]
    return table(["mechanism", "records", "hashing", "packing", "the rest"], cells)


def plot(rows: list[Row], figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    own = [row for row in rows if row["kind"] == "transform"]
    sizes = [2.0 ** row["bits"] for row in own]
    left.loglog(sizes, [row["seconds"] for row in own], "o-", color=STRONG, label="transform")
    left.loglog(sizes, [row["copy"] for row in own], "o-", color=MUTED, label="one copy")
    left.set_xlabel("integers in the array")
    left.set_ylabel("seconds")
    left.loglog(sizes, [row["textbook"] for row in own], "o:", color=LIGHT, label="level by level")
    left.legend(frameon=False, fontsize=8)
    made = [row for row in rows if row["kind"] == "absorb"]
    series = (("absorbing", "rate", STRONG), ("report by report", "singly", LIGHT))
    for shift, (label, name, colour) in enumerate(series):
        rates = [row[name] * row["buckets"] * row["channels"] for row in made]
        right.bar([i + 0.27 * shift for i in range(len(made))], rates, 0.25, color=colour, label=label)
    plain = [row["increments"] for row in made]
    right.bar([i + 0.54 for i in range(len(made))], plain, 0.25, color=MUTED, label="plain random increments")
    right.set_xticks([i + 0.27 for i in range(len(made))], [row["mechanism"] for row in made])
    right.set_ylabel("places per second, one core")
    right.margins(y=0.3)
    right.legend(frameon=False, fontsize=8)


SECTION = Section(
    "limits",
    "What the limits are",
    measure,
    text,
    quick={"bits": (14, 16), "reports": 50_000, "keys": 256, "entries": 8},
    plot=plot,
    caption="Transform beside copies of the array; absorbing beside random increments",
    size=(8.0, 3.4),
)

if __name__ == "__main__":
    print(text(measure()))
