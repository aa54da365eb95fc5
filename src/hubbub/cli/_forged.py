"""`hubbub simulate --forgers`: what forged reports do, and whether they are noticed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hubbub.cli._common import progress, say, tell
from hubbub.primitives.errors import Refused, optional
from hubbub.primitives.text import visible

if TYPE_CHECKING:
    from hubbub.calls.forged import Forged
    from hubbub.model.record import Entries
    from hubbub.protocol.task import Task
    from hubbub.tables.sources import Source


def forge_table(
    task: Task,
    source: Source,
    columns: tuple[str, str, str | None],
    options: dict[str, Any],
    as_json: bool,
) -> None:
    """Forged reports in the collection from a table's records; print what they did."""
    from hubbub.tables.records import encode_table, read_table

    rows = read_table(source, *columns)
    names = None if task.keys.kind == "closed" else rows.keys
    rehearse_forged(task, encode_table(task, rows)[0], names, options, as_json)


def rehearse_forged(
    task: Task, entries: Entries, names: list[str] | None, options: dict[str, Any], as_json: bool
) -> None:
    """Collect from these records with and without forgers; print what came of it."""
    from hubbub.calls.forged import rehearse_forgery

    found = rehearse_forgery(
        task,
        entries,
        options["forgers"],
        options["attack"],
        options["targets"],
        names=names,
        quantity=options["quantity"],
        seed=options["seed"],
        watch=lambda step, total, _: progress(step, total, as_json),
    )
    plot: Path | None = options["plot"]
    if plot is not None:
        draw(plot, found)
    say(as_json, found.as_dict() | ({"plot": str(plot)} if plot else {}), lambda: _show(found, plot))


def _show(found: Forged, plot: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    tell(found.title())
    if found.targets.any():
        table = Table(show_edge=False, pad_edge=False)
        table.add_column("target", overflow="fold")
        for name in ("without forgers", "with forgers", "moved by"):
            table.add_column(name, justify="right")
        for row in found.rows():
            forms = (("before", ".4f"), ("after", ".4f"), ("shift", "+.4f"))
            numbers = ("?" if row[name] is None else format(row[name], form) for name, form in forms)
            table.add_row(Text(visible(row["key"])), *numbers)
        Console().print(table)
    for line in found.closing():
        tell(line)
    if plot is not None:
        tell(f"Picture: {plot}")


def draw(path: Path, found: Forged) -> None:
    """All estimates with forgers against those without, and the band that the bound allows."""
    import io

    import numpy as np

    from hubbub.primitives.envelope import write_atomic

    optional("matplotlib", "plots").use("Agg")
    pyplot = optional("matplotlib.pyplot", "plots")
    figure, axes = pyplot.subplots(figsize=(7, 5), layout="constrained")
    known = np.isfinite(found.shift)
    before = found.before[known]
    span = np.array([before.min(initial=0.0), before.max(initial=0.0)])
    axes.plot(span, span, color="0.6", linewidth=1, label="not moved")
    if found.most is not None and np.ptp(found.most) == 0:
        low, high = span - found.most[0], span + found.most[0]
        axes.fill_between(span, low, high, color="#0f766e", alpha=0.12, label="the bound")
    elif found.most is not None:
        ends = before - found.most[known], before + found.most[known]
        axes.vlines(before, *ends, color="#0f766e", alpha=0.12, label="the bound")
    others = known & ~found.targets
    axes.scatter(found.before[others], found.after[others], s=8, color="#8a9099", label="other keys")
    if found.targets.any():
        aimed = known & found.targets
        axes.scatter(found.before[aimed], found.after[aimed], s=40, color="#b45309", label="targets")
    verdict = "noticed" if found.noticed.noticed else "not noticed"
    axes.set_title(
        f"{found.forgers:,} of {found.reports:,} reports forged ({found.attack}): {verdict}",
        loc="left",
        fontsize=11,
    )
    axes.set_xlabel(f"{found.quantity} without forgers")
    axes.set_ylabel("with forgers")
    axes.legend(frameon=False)
    buffer = io.BytesIO()
    try:
        figure.savefig(buffer, dpi=120, format=path.suffix.lstrip(".") or "png")
    except ValueError as problem:
        raise Refused(f"{path} cannot be written: {problem}.") from None
    finally:
        pyplot.close(figure)
    write_atomic(path, buffer.getvalue())
