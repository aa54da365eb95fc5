"""On the device: what a report costs to make, and its size.

python benchmarks/device.py
"""

from __future__ import annotations

from typing import Any

from hubbub.device.client import Client, privatize
from hubbub.model.mechanism import Goal, Mechanism
from hubbub.plan.ranking import rank
from hubbub.primitives.coins import SecretCoins, SystemSeeds
from hubbub.protocol.task import Task
from page import STRONG, Section, amount, duration, prose, table
from timing import Row, best, crowd

#: Reports of more bytes name every key: fewer of them are made, so that it does not take minutes.
WIDE = 64


def suitable(values: str, keys: int, entries: int, users: int) -> list[tuple[str, Mechanism]]:
    """Every mechanism that hides whole records, in the planner's best form, lowest error first."""
    quantity = "frequency" if values == "set" else "mean"
    goal = Goal(quantity, 1.0, entries, values=values, keys=keys, users=users)  # type: ignore[arg-type]
    return [(option.name, option.mechanism) for option in rank(goal) if option.mechanism is not None]


def task_for(mechanism: Mechanism, keys: int, salt: int = 0) -> Task:
    """A task over a closed vocabulary for a mechanism."""
    described = {"name": mechanism.name, **mechanism.model_dump(exclude_none=True)}
    closed: dict[str, Any] = {"kind": "closed", "size": keys, "salt": f"{salt:032x}"}
    if mechanism.sided:
        closed["bits"] = max(16, (2 * keys).bit_length())  # every key has two codes
    return Task.parse({"name": "bench", "keys": closed, "mechanism": described})


def measure(records: int = 200_000, singles: int = 300, keys: int = 4096, entries: int = 32) -> list[Row]:
    """Records per second in bulk, seconds for a single one, and bytes, for every mechanism."""
    return [
        {"mechanism": name, "values": values, "entries": entries, **_costs(mechanism, records, singles, keys)}
        for values in ("set", "signed")
        for name, mechanism in suitable(values, keys, entries, records)
    ]


def _costs(mechanism: Mechanism, records: int, singles: int, keys: int) -> Row:
    width, entries = mechanism.layout.width, mechanism.max_entries
    if width > WIDE:
        records, singles = max(8192, records // 20), max(3, singles // 30)
    task, people = task_for(mechanism, keys), crowd(records, keys, entries)
    privatize(task, people.slice(0, 8192), SecretCoins(), SystemSeeds())
    bulk, _ = best(lambda: privatize(task, people, SecretCoins(), SystemSeeds()), 2)
    client, record = Client(task), {str(key): 1.0 for key in range(entries)}
    single, _ = best(lambda: [client.report(record) for _ in range(singles)], 2)
    return {"bytes": width, "bulk": records / bulk, "single": single / singles}


def text(rows: list[Row]) -> str:
    cells = [
        [
            f"{row['mechanism']}, {row['values']}",
            f"{row['bytes']:,}",
            amount(row["bulk"], " records/s"),
            duration(row["single"]),
        ]
        for row in rows
    ]
    words = prose(
        f"""Records of {rows[0]["entries"]} entries, epsilon 1, coins from the operating system: in bulk (one core,
        compiled) and one report at a time through `Client.report`, which is interpreted and needs no numba.
        Mechanisms in the order of their predicted error."""
    )
    return words + "\n\n" + table(["mechanism", "bytes per report", "in bulk", "one report"], cells)


def plot(rows: list[Row], figure: Any) -> None:
    panels = figure.subplots(1, 2)
    for axes, values in zip(panels, ("set", "signed"), strict=True):
        own = [row for row in rows if row["values"] == values][::-1]
        bars = axes.barh(range(len(own)), [row["bulk"] for row in own], color=STRONG)
        axes.bar_label(bars, [f"{row['bytes']:,} B" for row in own], fontsize=7, padding=2)
        axes.set_yticks(range(len(own)), [row["mechanism"] for row in own])
        axes.set_xscale("log")
        axes.set_xlim(min(row["bulk"] for row in own) / 3, 3 * max(row["bulk"] for row in own))
        axes.set_xlabel("records per second, one core")
        axes.set_title("sets" if values == "set" else "signed values", fontsize=9)


SECTION = Section(
    "device",
    "On the device",
    measure,
    text,
    quick={"records": 10_000, "singles": 30, "keys": 128, "entries": 4},
    plot=plot,
    caption="Records per second and bytes per report",
    size=(8.0, 3.2),
)

if __name__ == "__main__":
    print(text(measure()))
