"""Untidy records, and what becomes of them: for `make_vectors.py`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from vector_reports import salt_of

from hubbub.device.client import encode_record
from hubbub.primitives.errors import Refused
from hubbub.protocol.device_document import device_document
from hubbub.protocol.task import Task

#: Values that JSON has no word for.
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "-0": -0.0}

#: Things that are no records, whatever the task.
_NO_RECORDS = [
    *("a", "", None, 1, 0.5, True, {"object": ""}, {"bytes": "a"}),
    *("b", "ab", "é", "🙂", "0", "a,b", "[]", "{}", "null", 0, -1, 2, 1.5, -0.5, False),
    *({"float": "nan"}, {"float": "-inf"}, {"whole": "5"}, {"bytes": ""}),
]


def plain(value: Any) -> Any:
    """A value of the rules' file as the thing it stands for."""
    if not isinstance(value, dict):
        return value
    if "float" in value:
        return _SPECIAL[value["float"]]
    if "whole" in value:
        return int(value["whole"])
    return object() if "object" in value else [plain(one) for one in value["list"]]


def rules() -> dict[str, Any]:
    """Untidy records: values under every scale, keys under every kind of keys, and things that are no records."""
    values = [
        *(0, 1, -1, 0.5, 2, 1e308, 5e-324, -2.5, 0.1, 1 / 3, 3, 4, 1e-9, 123456789, 0.25, 7 / 9),
        *(3 + n * 2**-30 for n in (-3, -2, -1, 1, 2, 3)),  # half steps of the grid from 1 to 5
        *(
            True,
            False,
            None,
            "1",
            "0",
            "-1.5e-1",
            " 2 ",
            "1_0",
            "1__0",
            "\ufeff1",
            "\x851",
            "\x1c1",
            "1\u20281",
            "1\u3000",
            "",
            " ",
            ".",
            "1.",
            ".5",
            "+.5e+1",
            "0x10",
            "1e999",
        ),
        *("nan", "inf", "Infinity", "1,5", "one", "--1", "1e", "e1", "1 2", "_1", "1_", "1_.5", "1e1_0"),
        *({"float": name} for name in _SPECIAL),
        *({"whole": str(n)} for n in (1, -1, 2**53 + 1, 2**64 + 2**11, 10**400, 0)),
        *({"list": []}, {"list": [1]}, {"object": ""}),
    ]
    labels = [
        *(
            "a",
            "b",
            "",
            "A",
            " a",
            "a ",
            "é",
            "e\u0301",
            "🙂",
            "\ud800",
            "\udc00x",
            "x\ud83d",
            "__proto__",
            "constructor",
        ),
        *(
            "0",
            "1",
            "2",
            "3",
            "01",
            "-1",
            "+1",
            "1.0",
            "1e0",
            "٣",
            "３",
            "4294967296",
            "99999999999999999999",
            "00",
        ),
        *(0, 1, 2, 3, -1, 2**53 - 1, {"whole": "1"}, {"whole": str(2**70)}),
        *(None, True, False, 1.5, {"float": "nan"}, {"list": ["a"]}, {"object": ""}),
    ]
    universe = {
        "kind": "closed",
        "vocabulary": ["a", "b", "", "é", "🙂", "__proto__", "0", "1"],
        "salt": salt_of(1),
    }
    kinds = [universe, {"kind": "closed", "size": 3}, {"kind": "folded"}, {"kind": "wide"}]
    collision, sums = (
        {"name": "collision", "epsilon": 1.0, "max_entries": 2},
        {"name": "sparse_sum", "unit": "l1"},
    )
    settings: list[dict[str, Any]] = [
        {"keys": universe, "mechanism": collision},
        {"keys": universe, "mechanism": {**collision, "values": "signed"}, "low": 1, "high": 5},
        {"keys": universe, "mechanism": {**collision, "values": "signed"}, "low": -2, "high": 0.7},
        {
            "keys": universe,
            "mechanism": {**sums, "epsilon": 1.0, "max_entries": 2, "values": "signed", "distance": 1.0},
            "low": 1,
            "high": 3,
        },
        *({"keys": {"salt": salt_of(2), **kind}, "mechanism": collision} for kind in kinds),
    ]
    rows: list[dict[str, Any]] = []
    for place, setting in enumerate(settings):
        task = Task.parse({"name": "rules", **setting})
        if place < 4:
            records = [{"map": [["a", value]]} for value in values]
            records += [{"map": [["a", 1], ["b", value], ["z", 1], ["a", 0]]} for value in values[::4]]
        else:
            records = [{"list": [label]} for label in labels] + [{"map": [[label, 1]]} for label in labels]
            records += [{"list": labels}, {"list": labels * 2}, {"list": []}, {"map": []}]
        records += [{"raw": raw} for raw in _NO_RECORDS]
        results = [_outcome(task, record) for record in records]
        rows.append({"document": device_document(task).decode(), "records": records, "outcomes": results})
    return {"settings": rows}


def record_of(given: dict[str, Any]) -> Any:
    """The record that a row stands for. A later entry with the same key replaces an earlier one, in its place."""
    if "map" in given:
        return _Pairs((plain(key), plain(value)) for key, value in given["map"])
    if "list" in given:
        return [plain(key) for key in given["list"]]
    raw = given["raw"]
    return raw["bytes"].encode() if isinstance(raw, dict) and "bytes" in raw else plain(raw)


class _Pairs(Mapping[Any, Any]):
    """A map with keys that no dict can hold, or twice."""

    def __init__(self, pairs: Iterator[tuple[Any, Any]]) -> None:
        self._pairs = list(pairs)

    def items(self) -> Any:
        return self._pairs

    def __getitem__(self, key: Any) -> Any:
        return next(value for own, value in self._pairs if own == key)

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)


def _outcome(task: Task, given: dict[str, Any]) -> Any:
    """What is kept of a record, as [id, value] pairs, and what is counted; or the refusal."""
    try:
        entries, summary = encode_record(task, record_of(given))
    except Refused as refusal:
        return str(refusal)
    kept = [[f"{int(one):x}", int(value)] for one, value in zip(entries.ids, entries.values, strict=True)]
    return [
        kept,
        summary.records,
        summary.entries,
        summary.clipped,
        summary.absent,
        summary.unknown,
        summary.unreadable,
    ]
