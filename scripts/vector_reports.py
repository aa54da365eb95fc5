"""Tasks, records and reports; keys and what they hash to: for `make_vectors.py`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

from hubbub.checks.conformance import TapeCoins
from hubbub.device.client import encode_record, privatize
from hubbub.model.hashing import hash_entries
from hubbub.model.keys import Keys
from hubbub.primitives.arrays import Int64s, UInt64s
from hubbub.primitives.siphash import COHORT, derive, siphash_word
from hubbub.protocol.device_document import device_document
from hubbub.protocol.task import Task

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


def report(task: Task, record: dict[str, Any], streams: Streams, vector: int) -> tuple[str, int]:
    """The bytes of one vector, and how many entries were dropped to make it."""
    entries, _ = encode_record(task, record)
    coins, seeds = TapeCoins(streams.words(2 * vector)), _Seeds(streams.words(2 * vector + 1))
    packed, summary = privatize(task, entries, coins, seeds)  # type: ignore[arg-type]
    return packed[0].tobytes().hex(), summary.dropped_entries


def salt_of(number: int) -> str:
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
        "odd": {"kind": "closed", "size": 24, "bits": 17},
        "few": {"kind": "closed", "size": 4},
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
        yield "odd", {**few, "buckets": 4, "favoured": 1, "seeds": 2}
        yield "few", {"name": "sampled", "max_entries": 2, "epsilon": 4.0, "mode": mode, "values": values}
    yield "wide", {"name": "sketch_response", "max_entries": 24, "epsilon": 0.5}
    for amplified in (True, False):
        yield (
            "named",
            {"name": "pckv_grr", "max_entries": 3, "size": 32, "values": "signed", "amplified": amplified},
        )
    yield "lengths", {"name": "pckv_grr", "max_entries": 3, "size": 26, "values": "signed", "epsilon": 5.0}
    for published in (True, False):
        each = {"name": "privkv", "max_entries": 3, "values": "signed", "as_published": published}
        yield "sized", {**each, "size": 24}
        yield "few", {**each, "size": 4, "epsilon": 4.0}
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
                "keys": {**universes()[universe], "salt": salt_of(number)},
                "mechanism": {"epsilon": 1.0, **mechanism},
            }
        )


def records_for(task: Task, rng: random.Random) -> Iterator[dict[str, float]]:
    """Records of every length, with keys and values that are within bounds and beyond."""
    names = list(task.keys.vocabulary or map(str, range(task.keys.count or 24)))
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
            [report(task, record, streams, TAPES * place + tape) for tape in range(TAPES)]
            for place, record in enumerate(held)
        ]
        rows.append(
            {
                "document": device_document(task).decode(),
                "records": [list(map(list, record.items())) for record in held],
                "reports": ["".join(report for report, _ in each) for each in made],
                "dropped": [each[0][1] for each in made],
            }
        )
    return {"tapes": TAPES, "tasks": rows}


def _signs(signs: Int64s) -> str:
    return "".join("+" if sign > 0 else "-" for sign in signs.tolist())


def _unmixed(word: int) -> int:
    """The word that `mix` takes to this one."""
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        word ^= word >> shift ^ word >> 2 * shift
        word = word * pow(factor, -1, 1 << 64) % (1 << 64)
    return word


def keys() -> dict[str, Any]:
    """Of every kind of keys: ids, signs, and codes by cohort; buckets and signs under a few seeds, in both families."""
    rows = []
    for number, (name, parts) in enumerate(universes().items()):
        universe = Keys(**{**parts, "salt": salt_of(1000 + number)})
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
        # Open vocabularies: ids whose hashes are 0, which is no code, and others that are 0 in one half.
        own = int(derive(universe.salt_words[0], COHORT, np.array([0], dtype=np.uint64))[0])
        rare = np.array([own ^ _unmixed(hashed) for hashed in (0, 5, 5 << 32)], dtype=np.uint64)
        rare = rare[: 0 if universe.kind == "closed" else len(rare)]
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
                "rare": [f"{int(one):016x}" for one in rare],
                "rare_codes": [f"{int(code):x}" for code in universe.codes(rare, 0)],
                "seeds": [f"{int(seed):016x}" for seed in seeds],
                "hashed": hashed,
            }
        )
    return {"universes": rows}
