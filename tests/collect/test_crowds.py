"""Whole crowds through shuffler and collector: when they close, in how many parts they travel, what is promised."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from fractions import Fraction
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from collecting import collected_task, collecting, eventually, some_reports
from live import ask, bearer, keyed_mixer, opaque_items

from helpers import contents, fits, refuse, refused, tilted
from hubbub.collect import mixer as mixing_module
from hubbub.collect import shuffler as module
from hubbub.collect.closing import Closing
from hubbub.collect.database import crowd_periods
from hubbub.collect.mixer import Mixer
from hubbub.collect.names import Names, column, each
from hubbub.collect.promises import people_in
from hubbub.collect.serving import serving
from hubbub.collect.settings import Settings
from hubbub.collect.shuffler import Shuffler, create_shuffler_app
from hubbub.collect.staging import permutation
from hubbub.device.ledger import Ledger
from hubbub.device.upload import Uploader
from hubbub.privacy.messages import messages_guarantee
from hubbub.privacy.people import most_of_one, people_among, reports_of
from hubbub.privacy.shuffle import shuffled_guarantee
from hubbub.protocol.sealing import seal, sealed_width
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate

SEVERAL = collected_task(messages=4)
DAILY = collected_task(period="day")


@pytest.fixture
def mixer(tmp_path: Path) -> Iterator[Mixer]:
    made = keyed_mixer(tmp_path / "shuffler.db")
    yield made
    made.close()


def dated(task: Task, count: int, day: str) -> bytes:
    """Opaque items of a period."""
    label = day.encode()
    return b"".join(label + item[len(label) :] for item in opaque_items(task, count))


class Clock:
    """Now, as the shuffler sees it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, day: str) -> None:
        self.now = datetime.datetime.fromisoformat(f"{day}T12:00:00+00:00")
        monkeypatch.setattr(module, "today", lambda: self.now.date())
        monkeypatch.setattr(module.time, "time", lambda: self.now.timestamp())

    def pass_by(self, **time_passed: float) -> None:
        self.now += datetime.timedelta(**time_passed)


def shuffler(mixer: Mixer, task: Task, crowd: int, close: str | None = None, **more: int) -> Shuffler:
    closing = None if close is None else Closing.parse(close)
    return Shuffler(mixer, [task], "http://127.0.0.1:9", "t", "up", crowd, closing=closing, **more)


def sizes(mixer: Mixer) -> list[int]:
    return sorted(mixer.crowd(batch).reports for batch in mixer.outgoing())


# When crowds close


def test_a_crowd_closes_when_its_period_has_ended(mixer: Mixer, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that came for a day leave together at the second midnight after; late ones make another crowd, or none."""
    clock = Clock(monkeypatch, "2026-11-16")
    mixing = shuffler(mixer, DAILY, 5, "period")
    mixing.accept(DAILY, dated(DAILY, 9, "2026-11-16"))
    mixing.step()
    clock.pass_by(hours=20)  # the day is over here, and not yet everywhere
    mixing.accept(DAILY, dated(DAILY, 4, "2026-11-16"))
    mixing.accept(DAILY, dated(DAILY, 6, "2026-11-17"))
    mixing.step()
    assert sizes(mixer) == []
    clock.pass_by(hours=20)
    mixing.step()
    assert sizes(mixer) == [13]
    mixing.accept(DAILY, dated(DAILY, 3, "2026-11-16"))
    clock.pass_by(days=1)
    mixing.step()
    assert sizes(mixer) == [6, 13]
    mixing.accept(DAILY, dated(DAILY, 2, "2026-11-16"))
    mixing.step()  # enough by now, but it is not midnight
    assert sizes(mixer) == [6, 13]
    clock.pass_by(days=1)
    mixing.step()
    assert sizes(mixer) == [5, 6, 13]
    assert mixer.waiting(DAILY) == 0


def test_what_waits_when_a_period_is_closed_for_good_leaves_or_is_dropped(
    mixer: Mixer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the shuffler did not run at midnight."""
    clock = Clock(monkeypatch, "2026-11-16")
    mixing = shuffler(mixer, DAILY, 5, "30d")
    mixing.accept(DAILY, dated(DAILY, 7, "2026-11-15") + dated(DAILY, 4, "2026-11-16"))
    clock.pass_by(days=20)
    shuffler(mixer, DAILY, 5, "30d").step()
    assert sizes(mixer) == [7]
    assert mixer.waiting(DAILY) == 0


def test_crowds_close_by_the_clock(mixer: Mixer, monkeypatch: pytest.MonkeyPatch) -> None:
    """At multiples of the time, with all that wait, if they are enough; a restart does not close anything."""
    task = collected_task()
    clock = Clock(monkeypatch, "2026-11-16")
    mixing = shuffler(mixer, task, 5, "6h")
    mixing.accept(task, b"".join(opaque_items(task, 50)))
    mixing.step()
    clock.pass_by(hours=5)
    mixing.step()
    shuffler(mixer, task, 5, "6h").step()
    assert sizes(mixer) == []
    assert mixing.rules[task.digest.hex()].until_next(clock.now.timestamp()) == 3600
    clock.pass_by(hours=1)
    mixing.step()
    assert sizes(mixer) == [50]
    mixing.accept(task, b"".join(opaque_items(task, 4)))
    clock.pass_by(hours=6)
    mixing.step()
    mixing.accept(task, b"".join(opaque_items(task, 1)))
    mixing.step()
    assert sizes(mixer) == [50]
    clock.pass_by(hours=6)
    mixing.step()
    assert sizes(mixer) == [5, 50]


@pytest.mark.parametrize("restarts", ["in time", "too late"])
def test_a_restart_at_the_hour_does_not_keep_a_crowd(
    mixer: Mixer, monkeypatch: pytest.MonkeyPatch, restarts: str
) -> None:
    """What should have left while nobody was here leaves at the start; a restart in between closes nothing."""
    clock = Clock(monkeypatch, "2026-11-16")
    first = shuffler(mixer, SEVERAL, 2, "6h")
    first.step()
    clock.pass_by(minutes=30)
    first.accept(SEVERAL, b"".join(opaque_items(SEVERAL, 100)))
    first.step()
    assert sizes(mixer) == []
    clock.pass_by(hours=5 if restarts == "in time" else 6)
    second = shuffler(mixer, SEVERAL, 2, "6h")
    second.step()
    assert sizes(mixer) == ([] if restarts == "in time" else [100])
    second.accept(SEVERAL, b"".join(opaque_items(SEVERAL, 90)))
    second.step()
    shuffler(mixer, SEVERAL, 2, "6h").step()  # once more, in the same stretch
    assert sizes(mixer) == ([] if restarts == "in time" else [100])
    clock.pass_by(hours=6)
    shuffler(mixer, SEVERAL, 2, "6h").step()
    expected = [190] if restarts == "in time" else [90, 100]
    assert sizes(mixer) == expected
    second.accept(SEVERAL, b"".join(opaque_items(SEVERAL, 80)))
    clock.pass_by(hours=7)
    for close in ("7h", "6h"):  # another rule has no past
        shuffler(mixer, SEVERAL, 2, close).step()
    assert sizes(mixer) == expected


def test_rules_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for text in ("", "often", "0h", "6", "h", "-1h", "1w"):
        with refused("when crowds close"):
            Closing.parse(text)
    with refused("by the clock", "--close 24h"):
        Closing.of(SEVERAL, None)
    with refused("by the clock"):
        Closing.of(collected_task(messages=4, period="day"), Closing.parse("full"))
    with refused("no periods"):
        Closing.of(collected_task(), Closing.parse("period"))
    assert Closing.of(collected_task(messages=4, period="day"), None).rule == "period"
    assert Closing.of(DAILY, None).rule == "full"
    SEVERAL.save(tmp_path / "task.toml")
    words = (
        "shuffler",
        tmp_path / "task.toml",
        "--collector",
        "http://x",
        "--token",
        "a",
        "--store",
        tmp_path / "s.db",
    )
    assert "by the clock" in refuse(*words, "--upload-token", "b")
    assert "need a token" in refuse(*words, "--close", "1d")
    (tmp_path / "tokens").write_bytes(b"\xff")
    assert "not a file of tokens" in refuse(*words, "--close", "1d", "--upload-tokens", tmp_path / "tokens")
    assert not (tmp_path / "s.db").exists()


# What a crowd is


def test_every_order_is_equally_likely() -> None:
    """Chi-square over the 24 orders of 4, false alarms 1e-6 at most; an order that is 30% too frequent is noticed."""
    found = [tuple(permutation(4).tolist()) for _ in range(48_000)]
    counts = [found.count(order) for order in permutations(range(4))]
    assert fits(counts, [1 / 24] * 24)
    assert not fits(counts, tilted([1 / 24] * 24))


def test_equal_numbers_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = iter([np.array([7, 3, 7], dtype=np.uint64), np.array([7, 3, 9], dtype=np.uint64)])
    monkeypatch.setattr("hubbub.collect.staging.os.urandom", lambda size: next(draws).tobytes())
    assert permutation(3).tolist() == [1, 0, 2]


def test_names_are_found_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a dictionary would, also with zeros at their ends and across merges."""
    monkeypatch.setattr("hubbub.collect.names._LATELY", 7)
    rng, names, known = np.random.default_rng(3), Names(), dict[bytes, int]()
    made = [
        rng.integers(0, 3, 16, dtype=np.uint8).tobytes()[: 15 - slot % 3].ljust(16, b"\0")
        for slot in range(200)
    ]
    for slot, name in enumerate(dict.fromkeys(made)):
        names.add([name], [slot])
        known[name] = slot
        if slot % 10 == 9:
            gone = sorted(known)[:3]
            assert names.remove(column(gone)).tolist() == [known.pop(name) for name in gone]
    assert len(names) == len(known)
    assert names.known(made) == [name in known for name in made]
    found, slots = names.columns()
    assert dict(zip(each(found), slots.tolist(), strict=True)) == known


def test_a_crowd_of_twenty_thousand_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Really sealed, mixed as one crowd, sent in parts, opened, counted once: what is promised is 20,000 people's."""
    people, task = 20_000, collected_task(minimum_reports=100)
    reports, width = some_reports(task, people, seed=5), task.mechanism.layout.width
    monkeypatch.setattr(mixing_module, "LARGEST_PART", 1 << 18)  # five parts
    with collecting(f"sqlite:///{tmp_path / 'store.db'}", task) as service:
        public, token = service.service.keys.public, service.service.tokens.new("shuffler")
        mixer = Mixer(tmp_path / "shuffler.db")
        mixing = Shuffler(mixer, [task], service.address, token, "up", people)
        items = [seal(reports[at : at + width], public, task) for at in range(0, len(reports), width)]

        def on_disk() -> bool:
            left = b"".join(contents(tmp_path).values())
            return any(item[:32] in left for item in items[::500])

        with serving(create_shuffler_app(mixing)) as url:
            path = f"{url}/v2/tasks/{task.digest.hex()}/sealed"
            for start in range(0, people, 2000):
                answer = ask(path, b"".join(items[start : start + 2000]), bearer("up"))
                assert answer.json["accepted"] == 2000
            eventually(lambda: not mixer.waiting(task) and not mixer.outgoing(), 120)
            eventually(lambda: not on_disk(), 60)  # a moment later, in the log as well
        about = service.get(service.path).json
        state = service.service.folder.fold(task).state
    assert state.to_bytes() == aggregate(task, reports).to_bytes()
    shuffled = about["guarantee"]["shuffled"]
    assert (shuffled["crowd"], shuffled["people"], shuffled["reports"]) == (people, people, people)
    expected = shuffled_guarantee(task.mechanism, people, 1e-6, 1)
    assert shuffled["epsilon"] == expected.epsilon
    assert "smallest crowd had 20,000 reports" in shuffled["words"]


def test_smaller_parts_for_a_collector_that_takes_smaller_bodies(tmp_path: Path) -> None:
    """Still one crowd, under a new id; what was refused under the old one is never counted."""
    task = collected_task()
    reports, width = some_reports(task, 40, seed=5), task.mechanism.layout.width
    with collecting(
        f"sqlite:///{tmp_path / 'store.db'}", task, largest_body=12 * sealed_width(task)
    ) as service:
        public, token = service.service.keys.public, service.service.tokens.new("shuffler")
        mixer = keyed_mixer(tmp_path / "shuffler.db", bytes.fromhex(service.service.keys.names[0]))
        mixing = Shuffler(mixer, [task], service.address, token, "up", 40)
        mixing.accept(
            task,
            b"".join(seal(reports[at : at + width], public, task) for at in range(0, len(reports), width)),
        )
        while not mixing.step()[0]:
            pass
        mixer.close()
        assert service.reports == 40
        assert service.service.store.crowds(task.digest.hex()) == (40, 40)


def test_an_old_collector_is_named(
    tmp_path: Path, mixer: Mixer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not know the route for parts: the crowd waits, and the log says what to do."""
    task = collected_task()
    monkeypatch.setattr(mixing_module, "LARGEST_PART", 3 * sealed_width(task))
    another = Shuffler(Mixer(tmp_path / "another.db"), [task], "http://x", "t", "up", 5)
    with serving(create_shuffler_app(another)) as url:  # it has no such route either
        mixing = Shuffler(mixer, [task], url, "t", "up", 5)
        mixing.accept(task, b"".join(opaque_items(task, 5)))
        assert mixing.step()[0] is False
    assert "upgrade it" in caplog.text
    assert sizes(mixer) == [5]


# Several messages


def test_several_messages_through_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices with ledgers, a crowd that closes by the clock, and a guarantee for people whom nobody has counted."""
    clock = Clock(monkeypatch, datetime.date.today().isoformat())
    sent: list[bytes] = []
    with collecting(f"sqlite:///{tmp_path / 'store.db'}", SEVERAL) as service:
        public, token = service.service.keys.public, service.service.tokens.new("shuffler")
        mixer = keyed_mixer(tmp_path / "shuffler.db", bytes.fromhex(service.service.keys.names[0]))
        mixing = Shuffler(mixer, [SEVERAL], service.address, token, "up", 20, closing=Closing.parse("1h"))
        for person in range(60):
            sent.append(Ledger(tmp_path / f"{person}.json").sealed(SEVERAL, {person % 5}, public))
            mixing.accept(SEVERAL, sent[-1])
            mixing.step()
        total = len(b"".join(sent)) // sealed_width(SEVERAL)
        assert total >= mixing.least(SEVERAL) == reports_of(20, SEVERAL.mean_messages or 1)  # type: ignore[arg-type]
        assert service.reports == 0  # however many wait, the clock decides
        clock.pass_by(hours=1)
        assert mixing.step()[0]
        mixer.close()
        about = service.get(service.path).json
        page = service.get(f"/tasks/{SEVERAL.digest.hex()}").body.decode()
    assert about["reports"] == total
    shuffled = about["guarantee"]["shuffled"]
    people = people_among(total, SEVERAL.mean_messages)  # type: ignore[arg-type]
    assert 20 <= people <= 60  # the latter but for one chance in a billion
    assert (shuffled["crowd"], shuffled["people"]) == (total, people) == (total, people_in(SEVERAL, total))
    expected = messages_guarantee(SEVERAL.mechanism, people, SEVERAL.mean_messages, 1e-6)  # type: ignore[arg-type]
    assert shuffled["epsilon"] == pytest.approx(expected.epsilon, rel=1e-6)
    assert f"at least {people:,} people" in shuffled["words"]
    assert f"{people:,} people" in page


def test_an_uploader_sends_all_messages_of_a_device_together(tmp_path: Path) -> None:
    """In one request, so that no crowd gets half of them; each sealed on its own."""
    task = collected_task(messages=30)
    with collecting(f"sqlite:///{tmp_path / 'store.db'}", task) as service:
        public = service.service.keys.public
        mixer = keyed_mixer(tmp_path / "shuffler.db", bytes.fromhex(service.service.keys.names[0]))
        mixing = Shuffler(mixer, [task], service.address, "t", "up", 2, closing=Closing.parse("1d"))
        requests: list[int] = []
        add = mixer.add_each
        mixer.add_each = lambda task, groups, limit=None: (  # type: ignore[method-assign]
            requests.extend(len(group) for group in groups),  # type: ignore[func-returns-value]
            add(task, groups, limit),
        )[1]
        with (
            serving(create_shuffler_app(mixing)) as url,
            Uploader(url, task, "up", tmp_path / "spool", batch=5, sealed_for=public) as uploader,
        ):
            made = []
            for person in range(4):
                uploader.report(Ledger(tmp_path / f"{person}.json"), {person})
                made.append(
                    len(Ledger(tmp_path / f"{person}.json").sealed(task, {person}, public))
                    // sealed_width(task)
                )
            assert uploader.flush()
            assert sorted(requests) == sorted(made)


def test_messages_of_a_device_are_never_torn_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by a crash while they are written, and not by a shuffler that calls them too large."""
    items = opaque_items(SEVERAL, 8)
    mixer = keyed_mixer(tmp_path / "shuffler.db")
    mixing = shuffler(mixer, SEVERAL, 2, "1d")
    with serving(create_shuffler_app(mixing)) as url:
        with Uploader(url, SEVERAL, "up", tmp_path / "spool", batch=3, sealed_for=bytes(32)) as uploader:
            with monkeypatch.context() as broken:
                broken.setattr("hubbub.primitives.envelope.os.replace", lambda *names: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    uploader.add_sealed(items)
            assert uploader.waiting == 0
        with monkeypatch.context() as small:
            small.setattr("hubbub.collect.relay.LARGEST_BODY", 5 * sealed_width(SEVERAL))
            with Uploader(url, SEVERAL, "up", tmp_path / "spool", batch=3, sealed_for=bytes(32)) as uploader:
                uploader.add_sealed(items)
                assert not uploader.flush()
                assert [path.stat().st_size for path in uploader.refused] == [8 * sealed_width(SEVERAL)]
        assert mixer.waiting(SEVERAL) == 0
        with Uploader(url, SEVERAL, "up", tmp_path / "spool", batch=3, sealed_for=bytes(32)) as uploader:
            uploader.add_sealed(items)
            assert uploader.flush()
        assert mixer.waiting(SEVERAL) == 8


def test_an_uploader_without_a_shuffler_takes_no_several_messages(tmp_path: Path) -> None:
    """Unmixed, the epsilons of all messages of a device add up."""
    with refused("for a shuffler", "sealed_for"):
        Uploader("http://127.0.0.1:9", SEVERAL, "up", tmp_path / "spool")
    assert not (tmp_path / "spool").exists()


# Limits per person


def test_a_token_is_for_so_many_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By period; repeated ones do not count, requests are taken whole, and nothing of tokens is on disk."""
    Clock(monkeypatch, "2026-11-16")
    mixer = keyed_mixer(tmp_path / "shuffler.db")
    mixing = Shuffler(mixer, [DAILY], "http://127.0.0.1:9", "t", ["ann-token", "bob-token"], 50, per_token=3)
    assert "At most 3 reports" in mixing.people
    two = dated(DAILY, 2, "2026-11-16")
    with serving(create_shuffler_app(mixing)) as url:

        def post(token: str, body: bytes) -> dict[str, int]:
            found: dict[str, int] = ask(
                f"{url}/v2/tasks/{DAILY.digest.hex()}/sealed", body, bearer(token)
            ).json
            return found

        assert post("ann-token", two) == {"accepted": 2, "repeated": 0}
        assert post("ann-token", two) == {"accepted": 0, "repeated": 2}
        more = dated(DAILY, 2, "2026-11-16")
        assert post("ann-token", more + dated(DAILY, 3, "2026-11-15")) == {
            "accepted": 3,
            "repeated": 0,
            "refused": 2,
        }
        assert post("ann-token", more[: sealed_width(DAILY)]) == {"accepted": 1, "repeated": 0}
        assert post("ann-token", dated(DAILY, 1, "2026-11-16"))["refused"] == 1
        assert post("bob-token", dated(DAILY, 3, "2026-11-16"))["accepted"] == 3
        assert ask(f"{url}/readyz").json["people"] == mixing.people
        with monkeypatch.context() as broken:  # what could not be written is not held against anybody
            broken.setattr("hubbub.collect.staging._to_disk", lambda file: 1 / 0)
            ask(
                f"{url}/v2/tasks/{DAILY.digest.hex()}/sealed",
                dated(DAILY, 3, "2026-11-17"),
                bearer("ann-token"),
            )
        assert post("ann-token", dated(DAILY, 3, "2026-11-17"))["accepted"] == 3
        files = b"".join(contents(tmp_path).values())
    assert b"ann-token" not in files
    assert (
        "cannot be told apart" in Shuffler(Mixer(tmp_path / "b.db"), [DAILY], "http://x", "t", "up", 5).people
    )
    with refused("at least 1"):
        Shuffler(Mixer(tmp_path / "c.db"), [DAILY], "http://x", "t", "up", 5, per_token=0)


@pytest.mark.parametrize("limit", ["--per-token", "public_reports"])
def test_a_limit_that_honest_devices_exceed_is_refused(tmp_path: Path, limit: str) -> None:
    """A device with many messages would fall silent, or send them in two halves: then their number is not Poisson."""
    least = most_of_one(Fraction(4))
    for most in (least - 1, least):
        mixer = keyed_mixer(tmp_path / f"{most}.db")

        def make(mixer: Mixer = mixer, most: int = most) -> None:
            personal, public = (most, 0) if limit == "--per-token" else (None, most)
            closing = Closing.parse("1d")
            made = Shuffler(mixer, [SEVERAL], "http://x", "t", "up", 5, closing=closing, per_token=personal)
            create_shuffler_app(made, Settings(public_reports=public))

        if most < least:
            with refused(limit, f"at least {least}"):
                make()
        else:
            make()
        mixer.close()


# What is promised


def test_what_earlier_versions_did_not_count_by_period_is_not_promised_away(tmp_path: Path) -> None:
    """Crowds of periods that nobody counted belong to all that somebody has said so far."""
    reports, width = some_reports(DAILY, 40, seed=5), DAILY.mechanism.layout.width
    with collecting(f"sqlite:///{tmp_path / 'store.db'}", DAILY) as service:
        rows = [reports[at * width : (at + 1) * width] for at in range(40)]
        for day in ("16", "17"):
            items = [seal(row, service.service.keys.public, DAILY, f"2026-11-{day}") for row in rows]
            assert service.upload(b"".join(items), f"c{day}", path=service.shuffled).status == 200
        before = service.get(service.path).json["guarantee"]["shuffled"]
        with service.service.store.writing() as connection:  # as a migration leaves it
            connection.execute(crowd_periods.delete().where(crowd_periods.c.period == "2026-11-16"))
        after = service.get(service.path).json["guarantee"]["shuffled"]
        page = service.get(f"/tasks/{DAILY.digest.hex()}").body.decode()
    assert before["so_far"]["periods"] == 2
    assert after["so_far"] is None
    assert [row["period"] for row in after["periods"]] == ["2026-11-17"]
    assert "periods so far" not in page


def test_the_guarantee_of_periods(tmp_path: Path) -> None:
    """Of each, by its smallest crowd; and of all so far, which is more than one day's and no more than their sum."""
    reports, width = some_reports(DAILY, 90, seed=5), DAILY.mechanism.layout.width
    with collecting(f"sqlite:///{tmp_path / 'store.db'}", DAILY) as service:
        for number, (day, begin, end) in enumerate([("16", 0, 30), ("16", 30, 50), ("17", 50, 90)]):
            rows = [reports[at * width : (at + 1) * width] for at in range(begin, end)]
            items = [seal(row, service.service.keys.public, DAILY, f"2026-11-{day}") for row in rows]
            assert service.upload(b"".join(items), f"c{number}", path=service.shuffled).status == 200
        shuffled = service.get(service.path).json["guarantee"]["shuffled"]
        page = service.get(f"/tasks/{DAILY.digest.hex()}").body.decode()
    first, second = shuffled["periods"]
    assert (first["period"], first["crowds"], first["smallest"], first["reports"]) == (
        "2026-11-16",
        2,
        20,
        50,
    )
    assert (second["period"], second["crowds"], second["smallest"], second["reports"]) == (
        "2026-11-17",
        1,
        40,
        40,
    )
    alone = [shuffled_guarantee(DAILY.mechanism, size, 1e-6, 1).epsilon for size in (20, 40)]
    assert [first["epsilon"], second["epsilon"]] == alone
    assert shuffled["so_far"]["periods"] == 2
    assert alone[0] < shuffled["so_far"]["epsilon"] <= 2.01 * alone[0] + 0.01
    assert "2026-11-16" in page
    assert "all 2 periods" in page


def test_a_limit_per_token_and_senders_without_one_do_not_go_together(tmp_path: Path) -> None:
    """All that show no token would count as one person, and the first would shut the others out."""
    mixer = Mixer(tmp_path / "both.db")
    mixing = Shuffler(mixer, [DAILY], "http://127.0.0.1:9", "t", "up", 5, per_token=3)
    with refused("--per-token", "public_reports"):
        create_shuffler_app(mixing, Settings(public_reports=10))
    mixer.close()
