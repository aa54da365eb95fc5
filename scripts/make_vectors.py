"""Make tests/vectors: what devices in all languages must agree on, to the bit.

    .venv/bin/python scripts/make_vectors.py

- `reports.json`: task documents, records, tapes of random words, and the report bytes that follow;
- `keys.json`: keys, and their ids, signs, codes and buckets;
- `rules.json`: untidy records, and what becomes of them.

A vector's words are no list but a rule, so that there may be many of them: word i of the stream s of group g is
SipHash-2-4 of the 8 little-endian bytes of i, under the key of the two words g and s. The coins of vector v of task g
read the stream 2 v of the group g, and its public seeds are drawn from the stream 2 v + 1, the top bits of a word each.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from hubbub.checks.conformance import TapeCoins
from hubbub.device.client import encode_record, privatize
from hubbub.model.hashing import hash_entries
from hubbub.model.keys import Keys
from hubbub.primitives.arrays import Int64s, UInt64s
from hubbub.primitives.errors import Refused
from hubbub.primitives.siphash import siphash_word
from hubbub.protocol.device_document import device_document
from hubbub.protocol.task import Task

FOLDER = Path(__file__).parent.parent / "tests" / "vectors"
#: Tapes for every record.
TAPES = 10
#: Words of a stream that are made at a time.
_BLOCK = 64


class Streams:
    """The streams of a group; the beginnings of some are made together, which is quicker."""

    def __init__(self, group: int, count: int) -> None:
        self._group = np.uint64(group)
        numbers = np.arange(count, dtype=np.uint64)[:, None]
        self._beginnings = siphash_word(self._group, numbers, np.arange(_BLOCK, dtype=np.uint64)).tolist()

    def words(self, number: int) -> Iterator[int]:
        """The words of a stream, without end."""
        yield from self._beginnings[number]
        for start in count(_BLOCK, _BLOCK):
            places = np.arange(start, start + _BLOCK, dtype=np.uint64)
            yield from siphash_word(self._group, np.uint64(number), places).tolist()


class _Seeds:
    """Public seeds from a stream."""

    def __init__(self, words: Iterator[int]) -> None:
        self._words = words

    def draw(self, bits: int, count: int) -> UInt64s:
        return np.array([next(self._words) >> (64 - bits) for _ in range(count)], dtype=np.uint64)


def report(task: Task, record: dict[str, Any], streams: Streams, vector: int) -> bytes:
    """The bytes of one vector."""
    entries, _ = encode_record(task, record)
    coins, seeds = TapeCoins(streams.words(2 * vector)), _Seeds(streams.words(2 * vector + 1))
    return privatize(task, entries, coins, seeds)[0].tobytes()  # type: ignore[arg-type]


def _salt(number: int) -> str:
    return f"{siphash_words(number, 0):016x}{siphash_words(number, 1):016x}"


def siphash_words(number: int, place: int) -> int:
    """A public word for everything that has to be some number."""
    return int(siphash_word(np.array([7], np.uint64), np.array([number], np.uint64), np.uint64(place))[0])


def universes() -> dict[str, dict[str, Any]]:
    """Kinds of keys."""
    names = [f"key {n}" for n in range(11)] + [
        "",
        "é",
        "日本",
        "🙂",
        "a\nb",
        '"',
        "\\",
        "0",
        "017",
        "__proto__",
    ]
    return {
        "sized": {"kind": "closed", "size": 24},
        "named": {"kind": "closed", "vocabulary": names},
        "tight": {"kind": "closed", "size": 24, "bits": 6, "cohorts": 3},
        "roomy": {"kind": "closed", "size": 24, "bits": 30},
        "lengths": {"kind": "closed", "size": 24, "count_lengths": True},
        "folded": {"kind": "folded", "bits": 12},
        "cohorts": {"kind": "folded", "bits": 20, "cohorts": 5},
        "wide": {"kind": "wide"},
        "wide cohorts": {"kind": "wide", "cohorts": 64, "count_lengths": True},
    }


def mechanisms() -> Iterator[tuple[str, dict[str, Any]]]:
    """Universes and mechanisms: everything that changes what a device does."""
    for family, keys in (("walsh", "sized"), ("walsh", "tight"), ("prf", "wide"), ("walsh", "wide cohorts")):
        yield keys, {"name": "collision", "max_entries": 3, "family": family}
    yield "named", {"name": "collision", "max_entries": 4, "epsilon": 4.0, "values": "signed"}
    yield "folded", {"name": "collision", "max_entries": 2, "values": "signed", "family": "prf"}
    yield "cohorts", {"name": "collision", "max_entries": 16, "epsilon": 0.1}
    yield "roomy", {"name": "collision", "max_entries": 8, "epsilon": 12.0}
    for keys, family in (("sized", "walsh"), ("wide", "walsh"), ("lengths", "prf"), ("cohorts", "walsh")):
        yield keys, {"name": "coco", "max_entries": 4, "family": family}
    yield "named", {"name": "coco", "max_entries": 2, "target": "frequency", "epsilon": 3.0}
    for mode in ("sets", "signed", "events"):
        values = "set" if mode == "sets" else "signed"
        for keys, family in (("sized", "walsh"), ("wide", "prf"), ("lengths", "walsh"), ("cohorts", "walsh")):
            yield (
                keys,
                {
                    "name": "sketch_response",
                    "max_entries": 4,
                    "family": family,
                    "mode": mode,
                    "values": values,
                },
            )
        few = {"name": "sketch_response", "max_entries": 6, "seeds": 1, "mode": mode, "values": values}
        yield "folded", {**few, "epsilon": 3.0}
        for keys, family in (("named", "walsh"), ("wide", "prf"), ("folded", "walsh")):
            yield (
                keys,
                {"name": "sampled", "max_entries": 3, "family": family, "mode": mode, "values": values},
            )
    yield "wide", {"name": "sketch_response", "max_entries": 24, "epsilon": 0.5}
    for amplified in (True, False):
        yield (
            "named",
            {"name": "pckv_grr", "max_entries": 3, "size": 32, "values": "signed", "amplified": amplified},
        )
    yield "lengths", {"name": "pckv_grr", "max_entries": 3, "size": 26, "values": "signed", "epsilon": 5.0}
    for published in (True, False):
        yield (
            "sized",
            {"name": "privkv", "max_entries": 3, "size": 24, "values": "signed", "as_published": published},
        )
    yield "sized", {"name": "hadamard", "bits": 8}
    yield "named", {"name": "hadamard", "epsilon": 4.0}
    for keys, family in (("sized", "walsh"), ("wide", "prf")):
        yield keys, {"name": "local_hashing", "family": family}
        yield keys, {"name": "local_hashing", "family": family, "binary": True}
    for noise in ("bit", "window", "laplace"):
        yield "sized", {"name": "sparse_sum", "max_entries": 5, "values": "signed", "noise": noise}
        yield (
            "wide",
            {"name": "sparse_sum", "max_entries": 5, "values": "set", "family": "prf", "noise": noise},
        )
    for values in ("set", "signed"):
        each = {"name": "sparse_sum", "max_entries": 5, "values": values}
        yield "cohorts", {**each, "unit": "entry", "buckets": 4}
        yield "wide", {**each, "unit": "l1", "distance": 2.5, "family": "prf", "buckets": 3, "epsilon": 2.0}
        yield "sized", {**each, "unit": "l1", "distance": 1.0, "round_at": "bins", "buckets": 2}
        yield "folded", {**each, "as_published": True}
    more = {
        "max_entries": 64,
        "values": "signed",
        "family": "prf",
        "unit": "l1",
        "distance": 8.0,
        "delta": 1e-6,
    }
    yield "named", {"name": "sparse_sum", **more, "buckets": 5}


def tasks() -> Iterator[Task]:
    """A task of each kind, with ranges of their own."""
    ranges = ((-1.0, 1.0), (0.0, 5.0), (1.0, 5.0), (-3.0, 0.1), (-1e-3, 1e6))
    for number, (universe, mechanism) in enumerate(mechanisms()):
        low, high = ranges[number % len(ranges)]
        yield Task.parse(
            {
                "name": f"{mechanism['name']} over {universe} keys",
                "low": low,
                "high": high,
                "keys": {**universes()[universe], "salt": _salt(number)},
                "mechanism": {"epsilon": 1.0, **mechanism},
            }
        )


def records_for(task: Task, rng: random.Random) -> Iterator[dict[str, float]]:
    """Records of every length, with keys and values that are within bounds and beyond."""
    names = list(task.keys.vocabulary or map(str, range(24)))
    low, high = task.low, task.high
    values = (low, high, (low + high) / 2, 0.0, -0.0, low - 1.0, high * 2, 1.0, low / 3, 1e300, -5e-324)
    limit = task.mechanism.max_entries
    for length in (
        0,
        1,
        1,
        2,
        3,
        limit,
        limit,
        limit + 1,
        limit + 5,
        0,
        1,
        2,
        min(limit, 20),
        21,
        24,
        1,
        2,
        3,
        limit,
    ):
        keys = rng.sample([*names, "not a key", "24", "\ud800"], min(length, len(names)))
        if task.scale.kind == "set":
            yield {key: 0.0 if rng.random() < 0.05 else 1.0 for key in keys}
        else:
            yield {
                key: rng.choice(values) if rng.random() < 0.5 else rng.uniform(1.2 * low, 1.2 * high)
                for key in keys
            }


def reports() -> dict[str, Any]:
    """Task documents, records and what is reported: TAPES reports of each record, one after another."""
    rows = []
    for group, task in enumerate(tasks()):
        held = list(records_for(task, random.Random(group)))
        streams = Streams(group, 2 * TAPES * len(held))
        made = [
            b"".join(report(task, record, streams, TAPES * place + tape) for tape in range(TAPES)).hex()
            for place, record in enumerate(held)
        ]
        rows.append(
            {
                "document": device_document(task).decode(),
                "records": [list(map(list, record.items())) for record in held],
                "reports": made,
            }
        )
    return {"tapes": TAPES, "tasks": rows}


def _signs(signs: Int64s) -> str:
    return "".join("+" if sign > 0 else "-" for sign in signs.tolist())


def keys() -> dict[str, Any]:
    """Of every kind of keys: ids, signs, and codes by cohort; buckets and signs under a few seeds, in both families."""
    rows = []
    for number, (name, parts) in enumerate(universes().items()):
        universe = Keys(**{**parts, "salt": _salt(1000 + number)})
        texts = [
            *(universe.vocabulary or map(str, range(24))),
            *(f"longer key number {n}" * (n % 5) for n in range(20)),
        ]
        texts = [text for text in dict.fromkeys(texts) if universe.known([text])[1][0]]
        ids = universe.ids_of(texts)
        sides = np.concatenate([ids, universe.other_side(ids)])
        seeds = np.array([siphash_words(number, seed) for seed in range(6)], dtype=np.uint64)
        hashed = []
        for family in ("walsh", "prf"):
            for buckets in (1, 2, 64, 1 << 20) if family == "walsh" else (1, 3, 1000, (1 << 20) - 1):
                offsets = np.arange(0, len(seeds) * len(sides) + 1, len(sides), dtype=np.int64)
                bucket, sign = hash_entries(
                    family, universe, seeds, np.tile(sides, len(seeds)), offsets, buckets
                )
                hashed.append([family, buckets, bucket.tolist(), _signs(sign)])
        task = Task.parse(
            {
                "name": name,
                "keys": universe,
                "mechanism": {"name": "collision", "epsilon": 1.0, "max_entries": 2},
            }
        )
        cohorts = sorted({0, 1 % universe.cohorts, universe.cohorts - 1})
        rows.append(
            {
                "document": device_document(task).decode(),
                "keys": texts,
                "ids": [f"{int(one):016x}" for one in ids],
                "other_sides": [f"{int(one):016x}" for one in universe.other_side(ids)],
                "length_ids": [f"{int(one):016x}" for one in universe.length_ids()],
                "signs": _signs(universe.signs(sides)),
                "codes": {
                    str(cohort): [f"{int(code):x}" for code in universe.codes(sides, cohort)]
                    for cohort in cohorts
                },
                "seeds": [f"{int(seed):016x}" for seed in seeds],
                "hashed": hashed,
            }
        )
    return {"universes": rows}


#: Values that JSON has no word for.
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "-0": -0.0}


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
        "salt": _salt(1),
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
        *({"keys": {"salt": _salt(2), **kind}, "mechanism": collision} for kind in kinds),
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
        records += [{"raw": raw} for raw in ("a", "", None, 1, 0.5, True, {"object": ""}, {"bytes": "a"})]
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
    return [kept, summary.entries, summary.clipped, summary.absent, summary.unknown, summary.unreadable]


def vectors() -> dict[str, dict[str, Any]]:
    """All files by name."""
    return {"reports.json": reports(), "keys.json": keys(), "rules.json": rules()}


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
