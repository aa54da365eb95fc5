"""Templates and files of the dashboard."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hubbub.primitives.text import visible

_HERE = Path(__file__).parent
_MEDIA = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True)
class File:
    """A file that pages refer to."""

    data: bytes
    media: str
    digest: str


def _load() -> dict[str, File]:
    root = _HERE / "static"
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            file = File(data, _MEDIA[path.suffix], hashlib.sha256(data).hexdigest()[:12])
            found[path.relative_to(root).as_posix()] = file
    return found


FILES = _load()


def _power(value: float) -> str:
    """A small number as people write it: 10⁻⁶, 2·10⁻⁷."""
    digits, _, power = f"{value:.2g}".partition("e")
    raised = str(int(power or 0)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    if not power:
        return digits
    return f"10{raised}" if digits == "1" else f"{digits}·10{raised}"


#: How templates write numbers.
FILTERS: dict[str, Callable[[Any], str]] = {
    "number": lambda value: f"{value:,}",
    "short": lambda value: f"{value:.3g}" if value < 1000 else f"{value:,.0f}",
    "power": _power,
    "visible": visible,
}

_templates = Environment(
    loader=FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.globals["static"] = lambda name: f"/static/{name}?{FILES[name].digest}"
_templates.filters.update(FILTERS)


def render(template: str, **values: Any) -> str:
    """A page; whatever is put into it is escaped."""
    return _templates.get_template(template).render(**values)
