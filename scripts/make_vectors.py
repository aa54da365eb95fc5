"""Make tests/vectors: what devices in all languages must agree on, to the bit.

    .venv/bin/python scripts/make_vectors.py

- `reports.json`: task documents, records, tapes of random words, and the report bytes that follow;
- `keys.json`: keys, and their ids, signs, codes and buckets;
- `rules.json`: untidy records, and what becomes of them;
- `samplers.json`: what the samplers make of tapes, of some that take them to rare places among others;
- `laws.json`: small tasks, and the probability of each of their reports;
- `periods.json`: whose turn it is, which records are the same, and which report is said when;
- `nonces.json`: seeds that follow from nonces, and reports that are made with them.

A vector's words are no list but a rule, so that there may be many of them: word i of the stream s of group g is
SipHash-2-4 of the 8 little-endian bytes of i, under the key of the two words g and s. The coins of vector v of task g
read the stream 2 v of the group g, and its public seeds are drawn from the stream 2 v + 1, the top bits of a word each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vector_laws import laws
from vector_nonces import nonces
from vector_periods import periods
from vector_reports import keys, reports
from vector_rules import rules
from vector_samplers import samplers

FOLDER = Path(__file__).parent.parent / "tests" / "vectors"


def vectors() -> dict[str, dict[str, Any]]:
    """All files by name."""
    return {
        "reports.json": reports(),
        "keys.json": keys(),
        "rules.json": rules(),
        "samplers.json": samplers(),
        "laws.json": laws(),
        "periods.json": periods(),
        "nonces.json": nonces(),
    }


def text_of(content: dict[str, Any]) -> str:
    """The text of a file: one line for every task, so that changes can be looked at."""
    (name, rows), *more = sorted(content.items(), key=lambda item: not isinstance(item[1], list))
    first = "".join(f"{json.dumps(key)}:{json.dumps(value)},\n" for key, value in more)
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    return f"{{{first}{json.dumps(name)}:[\n{lines}\n]}}\n"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in vectors().items():
        (FOLDER / name).write_text(text_of(content), "utf-8")
        print(f"{name}: {(FOLDER / name).stat().st_size:,} bytes")
