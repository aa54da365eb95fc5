"""Somebody reads every file of the shuffler: who came with whom, and in which order, is not there."""

from __future__ import annotations

import sqlite3
import stat
import struct
from bisect import bisect
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from collecting import collected_task
from live import keyed_mixer, opaque_items

from helpers import contents
from hubbub.collect import staging
from hubbub.collect.mixer import Mixer
from hubbub.collect.shuffler import Shuffler
from hubbub.collect.staging import digest
from hubbub.protocol.sealing import sealed_width

TASK = collected_task()
WIDTH = sealed_width(TASK)
#: Requests, and items in each.
REQUESTS, MEMBERS = 200, 3


def requests() -> list[list[bytes]]:
    return [opaque_items(TASK, MEMBERS) for _ in range(REQUESTS)]


# What is tried


def traces(data: bytes, sent: Sequence[Sequence[bytes]]) -> list[tuple[int, int]]:
    """Every place where an item or its digest is found in these bytes, with the item's number in order of arrival.

    Eight bytes of each are looked for at every place: chance finds none in 2^64.
    """
    if len(data) < 8:
        return []
    numbers = {
        int.from_bytes(trace[:8], "little"): number
        for number, item in enumerate(item for group in sent for item in group)
        for trace in (item, digest(item))
    }
    every = np.ndarray((len(data) - 7,), dtype="<u8", buffer=data, strides=(1,))
    begins = np.zeros(1 << 16, dtype=bool)  # most places are ruled out by two bytes
    begins[[trace & 0xFFFF for trace in numbers]] = True
    places = np.flatnonzero(begins[np.ndarray((len(data) - 7,), dtype="<u2", buffer=data, strides=(1,))])
    return [(int(place), numbers[trace]) for place in places if (trace := int(every[place])) in numbers]


def together(order: Sequence[int]) -> int:
    """How many neighbours in this order came in one request."""
    return sum(one != two and one // MEMBERS == two // MEMBERS for one, two in pairwise(order))


def trend(order: Sequence[int]) -> float:
    """Correlation of places and order of arrival."""
    return float(np.corrcoef(np.arange(len(order)), order)[0, 1])


def commits(log: bytes) -> list[int]:
    """Where each transaction ends in a write-ahead log of SQLite."""
    size = struct.unpack_from(">I", log, 8)[0] if len(log) >= 32 else len(log)
    frames = range(32, len(log) - 24 - size + 1, 24 + size)
    return [start + 24 + size for start in frames if struct.unpack_from(">I", log, start + 4)[0]]


def recovered(log: bytes, sent: Sequence[Sequence[bytes]]) -> int:
    """How many requests are transactions of a log: their members, and nobody else, are new in it."""
    first: dict[int, int] = {}
    for place, number in traces(log, sent):
        first.setdefault(number, place)
    ends, groups = commits(log), dict[int, set[int]]()
    for number, place in first.items():
        groups.setdefault(bisect(ends, place), set()).add(number)
    whole = [set(range(start, start + MEMBERS)) for start in range(0, REQUESTS * MEMBERS, MEMBERS)]
    return sum(group in groups.values() for group in whole)


def first_places(data: bytes, sent: Sequence[Sequence[bytes]]) -> list[int]:
    """Items in the order in which they first occur."""
    return list(dict.fromkeys(number for _, number in traces(data, sent)))


def gives_away(folder: Path, sent: Sequence[Sequence[bytes]]) -> list[str]:
    """Which of these attacks succeed, on which file.

    For an order that is drawn at random, neighbours of one request are about Poisson with mean (MEMBERS - 1) = 2, more
    than 16 of them having probability 1e-10; the correlation has standard deviation 1 / sqrt(600) = 0.04, so that 0.23
    is 5.6 of them, 2e-8. Twelve tests of each kind give false alarms with probability 1e-6 at most.
    """
    found = []
    for name, data in contents(folder).items():
        order = first_places(data, sent)
        if together(order) > 16:
            found.append(f"{name}: neighbours")
        if len(order) == REQUESTS * MEMBERS and abs(trend(order)) > 0.23:
            found.append(f"{name}: order")
        if name.endswith("-wal") and recovered(data, sent):
            found.append(f"{name}: transactions")
    return found


# What is found


def test_a_store_in_order_of_arrival_is_seen_through(tmp_path: Path) -> None:
    """The attacks work: on a database with a write-ahead log they find every request, although it has no row ids."""
    sent = requests()
    with closing(sqlite3.connect(tmp_path / "plain.db", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("CREATE TABLE items (digest BLOB PRIMARY KEY, item BLOB) WITHOUT ROWID")
        for group in sent:
            db.execute("BEGIN")
            db.executemany("INSERT INTO items VALUES (?, ?)", [(digest(item), item) for item in group])
            db.execute("COMMIT")
        found = gives_away(tmp_path, sent)
        assert recovered((tmp_path / "plain.db-wal").read_bytes(), sent) == REQUESTS
    assert {"plain.db-wal: neighbours", "plain.db-wal: transactions"} <= set(found)


def test_slots_that_are_not_drawn_at_random_are_seen_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "permutation", lambda count: np.arange(count, dtype=np.uint32))
    sent, mixer = requests(), Mixer(tmp_path / "shuffler.db")
    for group in sent:
        mixer.add(TASK, group)
    found = gives_away(tmp_path, sent)
    mixer.close()
    assert len(found) == 2  # neighbours and order, in the file of slots


def test_nothing_says_who_came_with_whom_or_when(tmp_path: Path) -> None:
    """While items wait, when their crowd is closed and after it has left; the file of slots grows on the way."""
    sent, mixer = requests(), keyed_mixer(tmp_path / "shuffler.db")
    mixing = Shuffler(mixer, [TASK], "http://127.0.0.1:9", "t", "up", REQUESTS * MEMBERS)
    mixer.add(TASK, opaque_items(TASK, 900))
    mixer.close_crowds(TASK, 900)  # an earlier crowd, so that slots are used for the second time
    for group in sent:
        assert mixing.accept(TASK, b"".join(group)) == (MEMBERS, 0)
    (slots,) = tmp_path.glob("*.waiting")
    assert len(traces(slots.read_bytes(), sent)) == REQUESTS * MEMBERS  # the items are there
    assert not any(
        first_places(data, sent) for name, data in contents(tmp_path).items() if name != slots.name
    )
    assert gives_away(tmp_path, sent) == []
    mixing.step()
    assert len(mixer.outgoing()) == 2
    assert gives_away(tmp_path, sent) == []
    assert not any(slots.read_bytes())
    for batch in mixer.outgoing():
        mixer.forget(batch)
    assert gives_away(tmp_path, sent) == []
    mixer.close()
    assert gives_away(tmp_path, sent) == []


def test_growing_files_are_mixed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that, items of the second half of a file would be known to have come late."""
    monkeypatch.setattr(staging, "_SLOTS", 64)
    sent, mixer = requests(), Mixer(tmp_path / "shuffler.db")
    for group in sent:
        mixer.add(TASK, group)
    assert gives_away(tmp_path, sent) == []
    mixer.close()
    mixer = Mixer(tmp_path / "shuffler.db")
    assert mixer.waiting(TASK) == REQUESTS * MEMBERS
    assert gives_away(tmp_path, sent) == []
    mixer.close()


def test_its_files_are_for_its_owner(tmp_path: Path) -> None:
    mixer = Mixer(tmp_path / "shuffler.db")
    mixer.add(TASK, requests()[0])
    mixer.close_crowds(TASK, 2)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    mixer.close()
    assert len(modes) == 3
    assert set(modes.values()) == {0o600}
