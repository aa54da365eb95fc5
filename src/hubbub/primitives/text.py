"""Text of strangers on screens and in spreadsheets. Keys may be any text, and some texts do things."""

from __future__ import annotations

import re

#: Marks of direction, which turn around what is next to them, and controls and ends of lines.
_TURNS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_TURNING = re.compile(f"[{_TURNS}]")
_UNSEEN = re.compile(f"[{_TURNS}\x00-\x1f\x7f-\x9f\u2028\u2029]")
#: What spreadsheets take for a formula; a number they may.
_FORMULA = re.compile("(?![+-][0-9]*[.]?[0-9]+$)[=+@\t\r＝＋－＠-]")


def visible(text: str) -> str:
    """The same text, with characters that would do something unseen written out, as \\u202e."""
    return _UNSEEN.sub(_written_out, text)


def cell(text: str) -> str:
    """Text for a CSV file that somebody may open as a spreadsheet: never a formula, never turned around.

    What could be a formula gets an apostrophe in front, which is how spreadsheets say that it is text.
    """
    return _TURNING.sub(_written_out, f"'{text}" if _FORMULA.match(text) else text)


def _written_out(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
