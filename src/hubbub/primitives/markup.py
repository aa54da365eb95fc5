"""HTML for notebooks: small tables that read well on a light and on a dark page.

Whatever is put into them is escaped, unless it was made here (`Markup`): keys are written by strangers.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from hubbub.primitives.text import visible

#: Reads on white and on black; everything else has the page's own colours, some of it faded.
ACCENT = "#12908a"
_CELL = "padding:3px 14px 3px 0;text-align:{};border:0;background:none;white-space:{};vertical-align:middle"
_FADED = "opacity:0.55"


class Markup(str):
    """HTML that was made here and is not escaped again."""

    __slots__ = ()


def escaped(content: Any) -> Markup:
    """Anything as HTML that shows it and does nothing; what was made here stays as it is."""
    return content if isinstance(content, Markup) else Markup(html.escape(visible(str(content))))


def paragraph(content: Any, strong: bool = False) -> Markup:
    """A few sentences."""
    weight = f"border-left:3px solid {ACCENT};padding-left:10px;" if strong else ""
    return Markup(f'<p style="{weight}margin:6px 0;max-width:60em">{escaped(content)}</p>')


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of plain text, with cells below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def table(
    head: Sequence[str], rows: Iterable[Sequence[Any]], faded: Sequence[bool] = (), text: int = 1
) -> Markup:
    """Rows under a head; the first `text` columns are text, the others numbers. Some rows may be faded."""

    def line(cells: Sequence[Any], tag: str, style: str = "") -> str:
        made = (
            f'<{tag} style="{_cell(place < text)}">{escaped(cell)}</{tag}>'
            for place, cell in enumerate(cells)
        )
        return f'<tr style="background:none;{style}">{"".join(made)}</tr>'

    body = [
        line(row, "td", _FADED if place < len(faded) and faded[place] else "")
        for place, row in enumerate(rows)
    ]
    top = f"<thead>{line(head, 'th')}</thead>" if any(head) else ""
    return Markup(
        '<table style="border-collapse:collapse;border:0;width:auto;font-variant-numeric:tabular-nums">'
        f"{top}<tbody>{''.join(body)}</tbody></table>"
    )


def _cell(text: bool) -> str:
    return _CELL.format("left", "normal;overflow-wrap:anywhere") if text else _CELL.format("right", "nowrap")


def facts(pairs: Iterable[tuple[str, Any]]) -> Markup:
    """What is what, in two columns."""
    names = ((Markup(f"<strong>{escaped(name)}</strong>"), content) for name, content in pairs)
    return table((), names, text=2)


def whisker(low: float, value: float, high: float, span: tuple[float, float], faded: bool) -> Markup:
    """An interval with a dot in it, on an axis that goes over `span`; a faint line is at 0."""
    width = (span[1] - span[0]) or 1.0

    def at(number: float) -> float:
        return round(4 + 172 * min(max((number - span[0]) / width, 0.0), 1.0), 1)

    colour = "currentColor" if faded else ACCENT
    zero = (
        f'<line x1="{at(0)}" x2="{at(0)}" y1="0" y2="18" stroke="currentColor" opacity="0.3"/>'
        if span[0] <= 0 <= span[1]
        else ""
    )
    ends = "".join(
        f'<line x1="{place}" x2="{place}" y1="6" y2="12" stroke="{colour}" stroke-width="1.5"/>'
        for place in (at(low), at(high))
    )
    return Markup(
        '<svg width="180" height="18" viewBox="0 0 180 18" style="width:180px;min-width:180px;vertical-align:middle">'
        f"{zero}"
        f'<line x1="{at(low)}" x2="{at(high)}" y1="9" y2="9" stroke="{colour}" stroke-width="1.5"/>{ends}'
        f'<circle cx="{at(value)}" cy="9" r="3.5" fill="{colour}"/></svg>'
    )


def whole(*parts: Markup) -> str:
    """The parts one below the other."""
    return f'<div style="font-size:0.95em;line-height:1.4">{"".join(parts)}</div>'
