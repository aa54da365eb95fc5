"""Text of strangers on screens and in spreadsheets. Keys may be any text, and some texts do things."""

from __future__ import annotations

import re

#: Characters that nobody sees and that turn around or end what is next to them: controls, ends of lines, and marks of
#: direction.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
#: What spreadsheets take for a formula; a number they may.
_FORMULA = re.compile("(?![+-][0-9]*[.]?[0-9]+$)[=+@\t\r＝＋－＠-]")


def visible(text: str) -> str:
    """The same text, with characters that would do something unseen written out, as \\u202e."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def cell(text: str) -> str:
    """Text for a CSV file that somebody may open as a spreadsheet: never a formula, never turned around.

    What could be a formula gets an apostrophe in front, which is how spreadsheets say that it is text.
    """
    return visible(f"'{text}" if _FORMULA.match(text) else text)
