"""Estimates and tasks on a terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from hubbub.cli._common import tell
from hubbub.primitives.text import visible

if TYPE_CHECKING:
    from hubbub.model.guarantee import Noise
    from hubbub.protocol.task import Task
    from hubbub.server.breakdown import Breakdown
    from hubbub.server.comparison import Comparison
    from hubbub.server.discovery import Discovery
    from hubbub.server.estimates import Estimate


def show_warnings(found: Estimate | Breakdown | Comparison | Discovery) -> None:
    """What has to be read before any number."""
    for warning in found.warnings:
        tell(warning)


def show_estimate(estimate: Estimate, top: int) -> None:
    """The keys that stand out, with error bars; those that do not are marked."""
    from hubbub.server.estimates import MEANINGS, mark_of

    best = estimate.worth_showing(top)
    if len(best) or not len(estimate):
        together = "; intervals hold for all keys together" if estimate.simultaneous else ""
        tell(f"{estimate.quantity}: {MEANINGS[estimate.quantity]}{together}")
        table = RichTable(header_style="bold")
        table.add_column("key", overflow="fold")
        for name in ("estimate", "± error", f"{100 * estimate.level:g}% interval"):
            table.add_column(name, justify="right")
        table.add_column("", no_wrap=True)
        for row in best.rows():
            error = "unknown" if row["error"] is None else f"{row['error']:.4f}"
            span = f"{row['low']:.4f} .. {row['high']:.4f}"
            style = "dim" if row["flagged"] else None
            key = Text(visible(row["key"]))
            table.add_row(key, f"{row['value']:.4f}", error, span, mark_of(row), style=style)
        Console().print(table)
        if len(estimate) > len(best):
            tell(f"{len(estimate) - len(best):,} more keys.")
    if estimate.findings.count:
        tell(estimate.findings.words(estimate.quantity, estimate.reports))
    for note in estimate.notes:
        tell(note)
    tell(f"From {estimate.reports:,} reports. {estimate.guarantee.words()}")


#: Parameters of mechanisms that say something to people who have not read the paper.
_PLAIN = ("unit", "distance", "delta", "buckets")


def shown(estimate: Estimate, top: int) -> dict[str, Any]:
    """The first rows as plain data, and how many there are in all."""
    rows = estimate.top(top).rows()
    return {"estimates": rows, "shown": len(rows), "total": len(estimate)}


def describe_task(task: Task, promise: bool = True, verbose: bool = False, noise: Noise = "device") -> str:
    """A task in a few lines, with its guarantee in words; `verbose` adds all parameters of the mechanism.

    `noise` says who has added it or will; a task by itself is for devices.
    """
    mechanism, keys, layout = task.mechanism, task.keys, task.mechanism.layout
    universe = {
        "closed": counted(keys.count, "key", "keys"),
        "folded": f"open, folded to {keys.bits} bits",
        "wide": "open, 64-bit codes",
        "tree": "" if keys.tree is None else f"to be discovered: {keys.tree.words()}",
    }[keys.kind]
    values = "sets" if mechanism.values == "set" else f"values from {task.low:g} to {task.high:g}"
    chosen = {
        name: f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in mechanism.model_dump(exclude_none=True).items()
        if name not in ("epsilon", "values") and value not in ("", False)
    }
    plain = ", ".join(chosen[name] for name in _PLAIN if name in chosen and chosen[name] != "unit record")
    lines = [
        f"task       {task.name} ({task.digest.hex()})",
        f"keys       {universe}",
        f"records    {values}, at most {counted(mechanism.max_entries, 'entry', 'entries')}",
        f"mechanism  {mechanism.name}" + (f": {plain}" if plain else ""),
        *([f"parameters {', '.join(chosen.values())}"] if verbose else []),
        f"estimates  {', '.join(mechanism.quantities)}",
        f"report     {counted(layout.width, 'byte', 'bytes')} ({counted(layout.bits, 'bit', 'bits')})",
        *([f"labels     {_labels(task)}; they are public"] if task.labels else []),
        *(f"note       {remark}" for remark in mechanism.remarks),
    ]
    if promise:
        from hubbub.privacy.over_time import spending

        lines.append(f"guarantee  {replace(task.guarantee, noise=noise).words()}")
        if task.period != "once" or task.reports_per_period > 1:
            lines.append(f"spending   {spending(task)}")
    return "\n".join(lines)


def _labels(task: Task) -> str:
    """The labels of a task with their values, or the first of them."""
    parts = []
    for name, values in task.labels.items():
        more = f", and {len(values) - 8:,} more" if len(values) > 8 else ""
        parts.append(f"{name} ({', '.join(values[:8])}{more})")
    return ", ".join(parts)


def counted(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def task_facts(task: Task, noise: Noise = "device") -> dict[str, object]:
    """The same as plain data."""
    from hubbub.privacy.over_time import over_time

    spans = [
        span if span.local is None else replace(span, local=replace(span.local, noise=noise))
        for span in over_time(task)
    ]
    return {
        "task": {key: value for key, value in task.model_dump(exclude_none=True).items() if key != "keys"},
        "keys": task.keys.model_dump(exclude={"vocabulary"}, exclude_none=True) | {"count": task.keys.count},
        "digest": task.digest.hex(),
        "estimates": list(task.mechanism.quantities),
        "report_bytes": task.mechanism.layout.width,
        "report_bits": task.mechanism.layout.bits,
        "guarantee": replace(task.guarantee, noise=noise).as_dict(),
        "over_time": [span.as_dict() for span in spans],
    }
