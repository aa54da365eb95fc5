"""Per-unit costs of a task that is planned for a billion devices, and what they add up to in a day.

    python benchmarks/capacity.py

Seeds are wider for so many users, so the costs of smaller tasks do not carry over; everything is measured on a task
as the planner makes it, with fewer reports.
"""

from __future__ import annotations

import math
from typing import Any

from device import suitable, task_for
from hubbub.device.client import Client, privatize
from hubbub.primitives.coins import SecretCoins, SystemSeeds
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate
from page import Result, Section, amount, duration, prose, table
from timing import Row, best, crowd, peak_bytes

DEVICES, DAY = 1_000_000_000, 86_400
#: How much busier the busiest hour is than the average one: a rule of thumb, stated on the page.
RUSH = 4
KEPT = ("sketch_response", "collision", "coco", "sparse_sum")


def measure(
    reports: int = 1 << 20, keys: int = 1_000_000, entries: int = 32, singles: int = 200
) -> list[Row]:
    """One row per mechanism and kind of values."""
    rows = []
    for values in ("set", "signed"):
        for name, mechanism in suitable(values, keys, entries, DEVICES):
            if name in KEPT:
                rows.append(
                    {
                        "mechanism": name,
                        "values": values,
                        **_costs(mechanism, reports, keys, entries, singles),
                    }
                )
    return rows


def _costs(mechanism: Any, reports: int, keys: int, entries: int, singles: int) -> Row:
    task, people = task_for(mechanism, keys), crowd(reports, keys, entries)
    privatize(task, people.slice(0, min(8192, reports)), SecretCoins(), SystemSeeds())
    packed, _ = privatize(task, people, SecretCoins(), SystemSeeds())
    client, record = Client(task), {str(key): 1.0 for key in range(entries)}
    single, _ = best(lambda: [client.report(record) for _ in range(singles)], 2)
    aggregate(task, packed[:8192])
    absorbing, state = best(lambda: aggregate(task, packed))
    ids = task.keys.all_ids()
    decoding, _ = best(lambda: mechanism.moments(state, task.keys, ids), 2)
    quantity = "frequency" if mechanism.values == "set" else "mean"
    return {
        "keys": keys,
        "entries": entries,
        "bytes": mechanism.layout.width,
        "single": single / singles,
        "absorb": reports / absorbing,
        "state": state.totals.nbytes,
        "peak": peak_bytes(lambda: aggregate(task, packed)),
        "decode": decoding,
        "error": math.sqrt(mechanism.variance(quantity, DEVICES)),
        "wide": _wide(packed, mechanism),
    }


def _wide(packed: Any, mechanism: Any, asked: int = 8) -> float:
    """Seconds per report and key with 64-bit codes, where each asked key is hashed for each report."""
    described = {"name": mechanism.name, **mechanism.model_dump(exclude_none=True)}
    task = Task.parse({"name": "bench", "keys": {"kind": "wide"}, "mechanism": described})
    state, ids = aggregate(task, packed), task.keys.ids_of([str(key) for key in range(asked)])
    mechanism.moments(state, task.keys, ids)
    spent, _ = best(lambda: mechanism.moments(state, task.keys, ids))
    return spent / asked / len(packed)


def text(rows: list[Row]) -> str:
    heads = ["mechanism", "bytes", "one report", "absorb, one core", "state", "all keys", "standard error"]
    cells = [
        [
            f"{row['mechanism']}, {row['values']}",
            str(row["bytes"]),
            duration(row["single"]),
            amount(row["absorb"], "/s"),
            amount(row["state"], " bytes"),
            duration(row["decode"]),
            f"{row['error']:.1e}",
        ]
        for row in rows
    ]
    words = prose(
        f"""Tasks as planned for {amount(DEVICES)} devices: {rows[0]["keys"]:,} keys, {rows[0]["entries"]} entries,
        epsilon 1. The last column is the predicted standard error of a rare key after one day. [Scale](scale.md)
        adds it up."""
    )
    return words + "\n\n" + table(heads, cells)


def day_page(results: dict[str, Result]) -> str:
    """docs/scale.md, from the rows of this section and of those that other parts of the day need."""
    rows = results["capacity"].rows
    row = rows[0]
    return (
        "\n\n".join(
            [
                "# A billion devices a day",
                prose(
                    f"""What it costs when {amount(DEVICES)} devices send one report a day, from measured per-unit
                    figures ([Benchmarks](benchmarks.md#per-unit-costs-of-a-large-task)). This page is written by
                    `python benchmarks/book.py`. The task: {row["keys"]:,} keys, {row["entries"]} entries a record,
                    epsilon 1, mechanism `{row["mechanism"]}`."""
                ),
                _day_table(row),
                prose(
                    f"""The predicted standard error of a rare key after that day is {row["error"]:.1e}: keys that one
                    user in {amount(1 / (5 * row["error"]))} holds stand out by five standard errors."""
                ),
                "## The other mechanisms",
                _mechanism_table(rows),
                "## More keys",
                _more_keys(results["limits"].rows),
                "## What breaks first",
                _breaks(row, results),
            ]
        )
        + "\n"
    )


def _day_table(row: Row) -> str:
    lines = [
        ["reports, as bytes", f"{row['bytes']} bytes", amount(DEVICES * row["bytes"], " bytes")],
        ["making reports, on the devices", duration(row["single"]), _hours(DEVICES * row["single"])],
        [
            "folding reports into the state",
            f"{amount(row['absorb'], '/s')} a core",
            _hours(DEVICES / row["absorb"]),
        ],
        ["arrays of a folding process", "", amount(row["peak"], " bytes")],
        ["state, on disk", "", amount(row["state"], " bytes")],
        ["decoding all keys, once", "", duration(row["decode"])],
        ["a year of reports, if they are kept", "", amount(365 * DEVICES * row["bytes"], " bytes")],
    ]
    return table(["what", "unit figure", "a day"], lines)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.2g} core hours" if seconds < 36_000 else f"{seconds / 3600:,.0f} core hours"


def _mechanism_table(rows: list[Row]) -> str:
    lines = [
        [
            f"{row['mechanism']}, {row['values']}",
            amount(DEVICES * row["bytes"], " bytes"),
            _hours(DEVICES / row["absorb"]),
            f"{row['error']:.1e}",
        ]
        for row in rows
    ]
    return table(["mechanism", "reports a day", "folding", "standard error"], lines)


def _more_keys(limits: list[Row]) -> str:
    """Arrays larger than measured: memory is exact, the transform is scaled by d log d."""
    measured = [row for row in limits if row["kind"] == "transform"]
    lines = []
    for bits in (20, 24, 26, 30):
        near = [row for row in measured if row["bits"] <= bits]
        spent = note = ""
        if near:
            last = near[-1]
            spent = duration(last["seconds"] * bits * 2.0**bits / (last["bits"] * 2.0 ** last["bits"]))
            note = "measured" if last["bits"] == bits else f"scaled from 2^{last['bits']}"
        lines.append([f"2^{bits}", f"{8 * 2**bits / 2**30:.3g} GiB", spent, note])
    words = prose(
        """Memory and decoding depend on the array of 2^m integers only, not on the number of devices. Open
        vocabularies choose m freely up to 30. Mechanisms that estimate frequency and mean from one report have two
        arrays."""
    )
    return words + "\n\n" + table(["codes", "one array", "transform", ""], lines)


def _breaks(row: Row, results: dict[str, Result]) -> str:
    average = DEVICES / DAY
    parts = [
        prose(
            f"""A billion a day are {average:,.0f} a second on average, and {average * RUSH:,.0f} in a busy hour
            (taken as {RUSH} times the average). Folding that many takes {average * RUSH / row["absorb"]:.2g} of one
            core, so the aggregation is not what breaks."""
        ),
        "What gives first, in this order:",
        "1. " + _requests(results["service"].rows),
        "2. "
        + prose(
            f"""**Memory for the array**, when there are more codes than memory holds (see above). 64-bit codes need
            no array, but keep all reports and hash each asked key for each of them: at {1e9 * row["wide"]:.2g} ns per
            report and key, {duration(row["wide"] * DEVICES)} of one core for each key."""
        ),
        "3. "
        + prose(
            """**The guarantee, not the machine.** A device that reports every day spends its epsilon every day.
            [Guarantees](guarantees.md) says how to plan for that; no hardware helps."""
        ),
    ]
    return "\n\n".join(parts)


def _requests(service: list[Row]) -> str:
    words = """**Requests.** One report per request makes a service pay for a request, and often a connection, for a
        few bytes. Batches from an edge or a shuffler make the requests a thousand times fewer; that is what they are
        for."""
    if service:
        row = service[0]
        cores = DEVICES / DAY * RUSH / row["reports_per_second"]
        words += f""" With {row["batch"]:,} reports in a request the busy hour needs {cores:.2g} cores on
            {row["store"]}; with one in a request, and as many requests a second as were measured,
            {cores * row["batch"]:.2g}."""
    return prose(words)


SECTION = Section(
    "capacity",
    "Per-unit costs of a large task",
    measure,
    text,
    quick={"reports": 8192, "keys": 4095, "entries": 4, "singles": 5},
)

if __name__ == "__main__":
    print(text(measure()))
