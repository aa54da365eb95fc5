"""Estimates for notebooks, as a table and as a plot, in the look of the dashboard.

As everywhere: where nothing stands out of many keys, that is what is shown, and no selection of noise; keys that cannot
be told from noise are grey; what people have written as keys is shown and does nothing.
"""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from hubbub.primitives.arrays import Floats
from hubbub.primitives.errors import optional
from hubbub.primitives.markup import Markup, paragraph, table, whisker, whole
from hubbub.primitives.text import visible
from hubbub.server.truncation import short_alarm

if TYPE_CHECKING:
    from hubbub.server.estimates import Estimate

#: The dashboard's colours: paper, ink, soft ink, lines, what stands out, what does not.
_LIGHT = ("#ffffff", "#1b1f24", "#5a616b", "#eeece6", "#0f766e", "#b3b7bd")
_DARK = ("#181c1f", "#e8e6e1", "#a3a9b1", "#252b30", "#5cc9bd", "#565d65")
#: Longer keys are cut on a plot.
_LONGEST = 40


def as_html(found: Estimate, meaning: str, marks: list[str], count: int = 20) -> str:
    """Warnings, the first rows with error bars, what stands out, and the guarantee."""
    best = found.worth_showing(count)
    parts = [paragraph(warning, strong=True) for warning in found.warnings]
    together = ", for all keys together" if found.simultaneous else ""
    parts.append(
        paragraph(
            f"{found.quantity}: {meaning}; {found.reports:,} reports, {100 * found.level:g}% intervals{together}"
        )
    )
    if len(best):
        span = _span(best)
        digits = decimals_for(found.error)
        rows = [
            (
                row["key"],
                whisker(row["low"], row["value"], row["high"], span, row["flagged"]),
                Markup(f"<strong>{row['value']:.{digits}f}</strong>"),
                "unknown" if row["error"] is None else f"± {row['error']:.{digits}f}",
                f"{row['low']:.{digits}f} to {row['high']:.{digits}f}",
                mark,
            )
            for row, mark in zip(best.rows(), marks, strict=True)
        ]
        head = ("key", "", "estimate", "error", "interval", "")
        parts.append(table(head, rows, best.flagged.tolist()))
        if len(best) < len(found):
            parts.append(paragraph(f"{len(found) - len(best):,} more keys."))
    parts += [paragraph(line) for line in closing(found)]
    return whole(*parts)


def closing(found: Estimate) -> list[str]:
    """What is said below the numbers, the guarantee last."""
    said = [found.findings.words(found.quantity, found.reports)] if found.findings.count else []
    said += [f"Input: {found.summary.words()}."] if found.summary is not None else []
    return [*said, *found.notes, found.guarantee.words()]


def decimals_for(errors: Floats) -> int:
    """Two digits of the typical error: more would be noise."""
    known = errors[np.isfinite(errors) & (errors > 0)]
    typical = float(np.median(known)) if len(known) else 1.0
    return min(max(1 - math.floor(math.log10(typical)), 0), 8)


def _span(shown: Estimate) -> tuple[float, float]:
    return min(0.0, float(shown.low.min())), max(0.0, float(shown.high.max()))


def draw(found: Estimate, best: Estimate, meaning: str, dark: bool, axes: Any) -> Any:
    """The `best` rows with their intervals on matplotlib's axes, made here if none are given; returns them.

    Warnings are below, in short, before the guarantee.
    """
    paper, ink, soft, lines, strong, noise = _DARK if dark else _LIGHT
    if axes is None:
        pyplot = optional("matplotlib.pyplot", "plots")
        height = 1.6 + 0.3 * max(len(best), 3)
        _, axes = pyplot.subplots(figsize=(8, height), layout="constrained", facecolor=paper)
    axes.set_facecolor(paper)
    colours = [noise if flagged else strong for flagged in best.flagged]
    places = np.arange(len(best))
    axes.hlines(places, best.low, best.high, colors=colours, linewidth=1.6)
    for ends in (best.low, best.high):
        axes.scatter(ends, places, c=colours, marker="|", s=40, linewidths=1.6)
    axes.scatter(best.value, places, c=colours, s=28, zorder=3)
    axes.axvline(0, color=noise, linewidth=1)
    names = [visible(key) for key in best.keys]
    names = [name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name in names]
    axes.set_yticks(places, names, parse_math=False)
    for label, flagged in zip(axes.get_yticklabels(), best.flagged, strict=True):
        label.set_color(soft if flagged else ink)
    axes.set_ylim(max(len(best), 3) - 0.5, -0.5)
    axes.tick_params(axis="x", colors=soft, length=0)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=lines)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)
    title = f"{meaning[0].upper()}{meaning[1:]}, with {100 * found.level:g}% intervals"
    axes.set_title(title, loc="left", color=ink, fontsize=11)
    said = ["Nothing stands out."] if found.findings.nothing and len(best) else []
    said += [lost] if (lost := short_alarm(found.truncation, found.losses)) else []
    below = f"{found.reports:,} reports. {found.guarantee.short()}. Grey: not told from noise."
    warned = [textwrap.fill(" ".join(said), 100)] if said else []
    axes.set_xlabel("\n".join([*warned, below]), color=ink if said else soft, parse_math=False)
    if not len(best):
        nothing = textwrap.fill(found.findings.words(found.quantity, found.reports), 80)
        axes.text(0.5, 0.5, nothing, color=ink, ha="center", va="center", transform=axes.transAxes)
        axes.set_xticks([])
    return axes
