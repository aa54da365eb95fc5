"""The shuffler and labels: a crowd has one combination of them, in one period, for one key."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from collecting import collected_task, collecting, eventually
from live import keyed_mixer, opaque_items

from helpers import succeed
from hubbub.collect import shuffler as module
from hubbub.collect.closing import Closing
from hubbub.collect.mixer import Mixer
from hubbub.collect.serving import serving
from hubbub.collect.shuffler import Shuffler, create_shuffler_app
from hubbub.device.ledger import Ledger
from hubbub.device.upload import Uploader
from hubbub.protocol.sealing import KEY_BYTES, sealed_width
from hubbub.protocol.strata import prefix_width
from hubbub.protocol.task import Task

LABELS = {"country": ["de", "fr", "it"], "version": ["1", "2"]}
ONCE = collected_task(labels=LABELS)
DAILY = collected_task(labels=LABELS, period="day")
DAY = "2026-11-18"


@pytest.fixture
def mixer(tmp_path: Path) -> Iterator[Mixer]:
    made = keyed_mixer(tmp_path / "shuffler.db")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "today", lambda: datetime.date.fromisoformat(DAY))


def marked(task: Task, count: int, prefix: str) -> bytes:
    """Opaque items of a stratum."""
    start = prefix.encode()
    return b"".join(start + item[len(start) :] for item in opaque_items(task, count))


def shuffler(mixer: Mixer, task: Task, crowd: int = 5, close: str = "full", **more: int) -> Shuffler:
    closing = Closing.parse(close)
    return Shuffler(mixer, [task], "http://127.0.0.1:9", "t", "up", crowd, closing=closing, **more)


def crowds(mixer: Mixer, task: Task) -> Counter[tuple[bytes, bytes, int]]:
    """Public beginning, key and size of each crowd; all items of a crowd have the first two in common."""
    width, prefix = sealed_width(task), prefix_width(task)
    found: Counter[tuple[bytes, bytes, int]] = Counter()
    for batch in mixer.outgoing():
        crowd = mixer.crowd(batch)
        body = b"".join(mixer.part(batch, number) for number in range(crowd.parts))
        items = [body[at : at + width] for at in range(0, len(body), width)]
        (kind,) = {(item[:prefix], item[-KEY_BYTES:]) for item in items}
        found[(*kind, len(items))] += 1
    return found


def sizes(mixer: Mixer, task: Task) -> dict[str, int]:
    return {prefix.decode(): count for prefix, _, count in crowds(mixer, task)}


def test_a_crowd_has_one_combination(mixer: Mixer) -> None:
    """Ten reports of two combinations make no crowd of eight; the one with eight of its own leaves."""
    shuffling = shuffler(mixer, ONCE, crowd=8)
    assert shuffling.accept(ONCE, marked(ONCE, 5, "0000")) == (5, 0)
    assert shuffling.accept(ONCE, marked(ONCE, 5, "0001")) == (5, 0)
    shuffling.step()
    assert (mixer.outgoing(), mixer.complete(ONCE, 8)) == ([], False)
    shuffling.accept(ONCE, marked(ONCE, 4, "0001") + marked(ONCE, 2, "0000"))
    assert mixer.complete(ONCE, 8)
    shuffling.step()
    assert sizes(mixer, ONCE) == {"0001": 9}
    assert mixer.waiting(ONCE) == 7


def test_many_combinations_close_together_and_the_rest_waits(mixer: Mixer, tmp_path: Path) -> None:
    """In one request, in any order; the next process finds the same."""
    body = {f"{number:04x}": marked(ONCE, 3 + number, f"{number:04x}") for number in range(6)}
    width = sealed_width(ONCE)
    mixed = b"".join(
        items[at : at + width] for at in range(0, 9 * width, width) for items in reversed(body.values())
    )
    shuffling = shuffler(mixer, ONCE)
    assert shuffling.accept(ONCE, mixed) == (33, 0)
    mixer.close()
    again = keyed_mixer(tmp_path / "shuffler.db")
    shuffler(again, ONCE).step()
    assert sizes(again, ONCE) == {"0002": 5, "0003": 6, "0004": 7, "0005": 8}
    assert again.waiting(ONCE) == 3 + 4
    assert shuffler(again, ONCE).accept(ONCE, mixed) == (0, 33)  # also what has left is known
    again.close()


def test_a_crash_between_two_crowds_loses_and_repeats_nothing(
    mixer: Mixer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shuffling = shuffler(mixer, ONCE)
    body = marked(ONCE, 5, "0000") + marked(ONCE, 6, "0001") + marked(ONCE, 7, "0002")
    shuffling.accept(ONCE, body)
    close, done = Mixer._close, []

    def second_fails(*given: object) -> None:
        if done:
            raise OSError("no space left")
        done.append(close(*given))  # type: ignore[arg-type]

    monkeypatch.setattr(Mixer, "_close", second_fails)
    with pytest.raises(OSError, match="no space"):
        mixer.close_crowds(ONCE, 5)
    monkeypatch.undo()
    assert sum(sizes(mixer, ONCE).values()) + mixer.waiting(ONCE) == 18
    mixer.close_crowds(ONCE, 5)
    assert sizes(mixer, ONCE) == {"0000": 5, "0001": 6, "0002": 7}
    assert mixer.waiting(ONCE) == 0


def test_unknown_combinations_are_refused_and_counted(mixer: Mixer) -> None:
    shuffling = shuffler(mixer, DAILY)
    good = marked(DAILY, 2, f"{DAY}0005")
    for prefix in (
        f"{DAY}0006",
        f"{DAY}ffff",
        f"{DAY}000A",
        f"{DAY}-001",
        "2026-13-010001",
        "2020-01-010001",
    ):
        assert shuffling.accept(DAILY, marked(DAILY, 3, prefix)) == (0, 0)
    assert shuffling.accept(DAILY, good + marked(DAILY, 1, f"{DAY}0006")) == (2, 0)
    lines = shuffling.metrics().splitlines()
    assert 'hubbub_shuffler_items_total{outcome="refused"} 19' in lines
    assert 'hubbub_shuffler_items_total{outcome="accepted"} 2' in lines
    assert mixer.waiting(DAILY) == 2


def test_periods_close_and_end_with_all_their_labels(mixer: Mixer, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a day the crowds of that day leave, each for itself; what was too little is dropped with it."""
    shuffling = shuffler(mixer, DAILY, close="period")
    now = [datetime.datetime.fromisoformat(f"{DAY}T12:00:00+00:00")]
    monkeypatch.setattr(module, "today", lambda: now[0].date())
    monkeypatch.setattr(module.time, "time", lambda: now[0].timestamp())
    shuffling.step()
    many, few = marked(DAILY, 6, f"{DAY}0000"), marked(DAILY, 4, f"{DAY}0001")
    shuffling.accept(DAILY, many + few + marked(DAILY, 5, "2026-11-190000"))
    shuffling.step()
    assert not mixer.outgoing()
    now[0] += datetime.timedelta(days=2)
    shuffling.step()
    assert sizes(mixer, DAILY) == {f"{DAY}0000": 6}
    now[0] += datetime.timedelta(days=8)
    shuffling.step()
    assert mixer.waiting(DAILY) == 0
    assert sizes(mixer, DAILY) == {f"{DAY}0000": 6, "2026-11-190000": 5}
    now[0] -= datetime.timedelta(days=10)  # the clock jumps back: nobody knows any more what has left
    assert shuffling.accept(DAILY, many + few + marked(DAILY, 3, f"{DAY}0002")) == (0, 0)


def test_a_limit_per_token_is_for_all_labels_together(mixer: Mixer) -> None:
    """Whoever names other labels is not another person."""
    shuffling = shuffler(mixer, DAILY, per_token=3)
    assert shuffling.accept(DAILY, marked(DAILY, 2, f"{DAY}0000"), "mine") == (2, 0)
    assert shuffling.accept(DAILY, marked(DAILY, 2, f"{DAY}0001"), "mine") == (0, 0)
    assert shuffling.accept(DAILY, marked(DAILY, 1, f"{DAY}0001"), "mine") == (1, 0)
    assert shuffling.accept(DAILY, marked(DAILY, 1, "2026-11-190001"), "mine") == (1, 0)


def test_it_says_that_labels_are_public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.collect.serving.run_app", lambda app, sock: sock.close())
    ONCE.save(tmp_path / "task.toml")
    given = (
        "shuffler",
        tmp_path / "task.toml",
        *("--collector", "http://x", "--token", "a", "--upload-token", "b"),
        *("--store", tmp_path / "s.db", "--port", 0),
    )
    said = succeed(*given)
    name = ONCE.digest.hex()
    assert said["same_labels"] == {name: ["country", "version"]}
    assert "among those with its own labels, and among no others" in said["promises"][name]


def test_from_devices_through_the_shuffler_to_strata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two countries make a crowd each, the third is too few; what arrives is in the stratum that the devices named."""
    monkeypatch.undo()  # today is today, for devices, shuffler and collector
    today = datetime.datetime.now(datetime.UTC).date()
    people = [("de", 6), ("fr", 5), ("it", 4)]
    with collecting(f"sqlite:///{tmp_path}/s.db", DAILY) as collector:
        token, public = collector.service.tokens.new("shuffler"), collector.service.keys.public
        mixer = Mixer(tmp_path / "shuffler.db")
        mixing = Shuffler(mixer, [DAILY], collector.address, token, "up", 5)
        with serving(create_shuffler_app(mixing)) as address:
            for country, count in people:
                labels = {"country": country, "version": "2"}
                spool = tmp_path / "spool"
                with Uploader(address, DAILY, "up", spool, sealed_for=public, labels=labels) as uploader:
                    for person in range(count):
                        uploader.report(Ledger(tmp_path / f"{country}{person}.json"), {1}, today)
                    assert uploader.flush()
            eventually(lambda: mixer.waiting(DAILY) == 4 and not mixer.outgoing())
        strata = collector.service.store.known_strata(DAILY.digest.hex())
        assert set(strata) == {f"country={country},version=2@{today}" for country in ("de", "fr")}
        assert collector.reports == 11
