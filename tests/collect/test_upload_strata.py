"""The uploader, labels and periods: a report says those that it was made with, whenever and by whomever it is sent."""

from __future__ import annotations

import datetime
import http.server
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from collecting import collected_task, collecting, eventually, some_reports
from live import own_answer

from helpers import QuietServer, refused
from hubbub.collect.keypair import KeyPair
from hubbub.device import spool as spooling
from hubbub.device import upload as uploading
from hubbub.device.ledger import Ledger
from hubbub.device.upload import Uploader
from hubbub.primitives.envelope import unseal
from hubbub.protocol.periods import period_of
from hubbub.protocol.sealing import sealed_width
from hubbub.protocol.strata import Stratum, combination, labels_in, stratum_from

LABELS = {"version": ["1", "2"], "country": ["de", "fr"]}
ONCE = collected_task(labels=LABELS)
WEEKLY = collected_task(labels=LABELS, period="week")
PLAIN, PLAIN_WEEKLY = collected_task(), collected_task(period="week")
#: An address where nobody answers.
NOBODY = "http://127.0.0.1:9"
W46, W47 = datetime.date(2026, 11, 12), datetime.date(2026, 11, 18)
#: What a batch says of itself: labels and period, None where a header is missing.
Said = tuple[str | None, str | None]


class Fake:
    """A collector that answers what the test says, and remembers who said what."""

    def __init__(self) -> None:
        self.address, self.largest = "", 10**9
        self.statuses: list[int] = []
        self.batches: dict[str, tuple[Said, bytes]] = {}

    @property
    def reports(self) -> dict[Said, bytes]:
        found: dict[Said, bytes] = defaultdict(bytes)
        for said, payload in self.batches.values():
            found[said] += payload
        return dict(found)


@contextmanager
def fake_collector() -> Iterator[Fake]:
    fake = Fake()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body, name = self.rfile.read(int(self.headers["Content-Length"])), self.headers["Hubbub-Batch"]
            sealed = self.path.endswith("/sealed")
            payload = body if sealed else bytes(unseal(body, kind=b"R").payload)
            status = 413 if len(payload) > fake.largest else 200
            if status == 200:
                said = (self.headers["Hubbub-Labels"], self.headers["Hubbub-Period"])
                again = fake.batches.setdefault(name, (said, payload))
                assert again == (said, payload), "other bytes or another stratum under one id"
                status = fake.statuses.pop(0) if fake.statuses else 200
            if status == 0:
                return  # taken, and the answer is lost
            media, answer = own_answer(status, name)
            self.send_response(status)
            self.send_header("Content-Type", media)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    server = QuietServer(("127.0.0.1", 0), Handler)
    fake.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[datetime.date]:
    """Today, as the uploader sees it; the last one counts."""
    shown = [W47]

    class Date(datetime.date):
        @classmethod
        def today(cls) -> datetime.date:
            return shown[-1]

    monkeypatch.setattr(uploading.datetime, "date", Date)
    return shown


def rows(reports: bytes) -> list[bytes]:
    return sorted(reports[at : at + 3] for at in range(0, len(reports), 3))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*/*") if path.name != "lock")


def test_a_batch_says_its_labels_and_its_period(tmp_path: Path, clock: list[datetime.date]) -> None:
    for task, labels, said in (
        (ONCE, {"version": "2", "country": "de"}, ("country=de,version=2", None)),
        (WEEKLY, {"country": "fr", "version": "1"}, ("country=fr,version=1", "2026-W47")),
        (PLAIN_WEEKLY, None, (None, "2026-W47")),
        (PLAIN, None, (None, None)),
    ):
        reports = some_reports(task, 5)
        with fake_collector() as fake:
            with Uploader(fake.address, task, "t", tmp_path / task.digest.hex(), labels=labels) as uploader:
                uploader.add(reports)
                assert uploader.waiting == 5
                assert uploader.flush()
                assert uploader.waiting == 0
            assert fake.reports == {said: reports}
            assert all(len(name) == 41 and "@" not in name for name in fake.batches)


def test_reports_keep_their_stratum_while_they_wait(tmp_path: Path, clock: list[datetime.date]) -> None:
    """The week passes, the device moves to another country, the app is updated; then the network is back."""
    moves = [("de", "1", W46), ("de", "1", W47), ("fr", "1", W47), ("fr", "2", W47), ("de", "1", W46)]
    expected: dict[Said, bytes] = defaultdict(bytes)
    for country, version, day in moves:
        clock.append(day)
        reports = some_reports(WEEKLY, 4)
        labels = {"country": country, "version": version}
        with Uploader(NOBODY, WEEKLY, "t", tmp_path, labels=labels, linger=60) as uploader:
            uploader.add(reports)
        expected[f"country={country},version={version}", "2026-W46" if day == W46 else "2026-W47"] += reports
    with fake_collector() as fake:
        labels = {"country": "fr", "version": "1"}
        with Uploader(fake.address, WEEKLY, "t", tmp_path, labels=labels) as uploader:
            assert uploader.waiting == 20
            assert uploader.flush()
            assert (uploader.waiting, uploader.refused) == (0, [])
        assert {said: rows(each) for said, each in fake.reports.items()} == {
            said: rows(each) for said, each in expected.items()
        }
    assert files(tmp_path) == []


def test_a_report_is_of_the_period_that_the_ledger_has_it_in(
    tmp_path: Path, clock: list[datetime.date]
) -> None:
    """Made for last week, also while there are reports of this week; asked again, nothing is added."""
    labels = {"country": "de", "version": "2"}
    ledger = Ledger(tmp_path / "ledger.json")
    with fake_collector() as fake:
        with Uploader(fake.address, WEEKLY, "t", tmp_path, labels=labels, linger=60) as uploader:
            for day in (W47, W46, W47, W46):
                uploader.report(ledger, {1}, day)
            uploader.report(ledger, {1})  # today is in week 47
            assert uploader.flush()
        told = "country=de,version=2"
        made = {
            (told, "2026-W46"): ledger.report(WEEKLY, {2}, W46),
            (told, "2026-W47"): ledger.report(WEEKLY, {2}),
        }
        assert fake.reports == made


def test_a_clock_that_jumps_back_a_week_and_forth(tmp_path: Path, clock: list[datetime.date]) -> None:
    """Every report says what the clock showed when it was taken."""
    labels, told = {"country": "de", "version": "1"}, "country=de,version=1"
    made = [some_reports(WEEKLY, 3) for _ in range(3)]
    with (
        fake_collector() as fake,
        Uploader(fake.address, WEEKLY, "t", tmp_path, labels=labels, linger=60) as up,
    ):
        for day, reports in zip((W47, W46, W47), made, strict=True):
            clock.append(day)
            up.add(reports)
        assert up.flush()
        assert {said: rows(each) for said, each in fake.reports.items()} == {
            (told, "2026-W47"): rows(made[0] + made[2]),
            (told, "2026-W46"): rows(made[1]),
        }


def test_a_clock_that_was_never_set_names_no_period(
    tmp_path: Path, clock: list[datetime.date], monkeypatch: pytest.MonkeyPatch
) -> None:
    labels, told = {"country": "de", "version": "1"}, "country=de,version=1"
    monkeypatch.setattr(spooling, "clock_is_set", lambda: False)
    monkeypatch.setattr(uploading, "clock_is_set", lambda: False)
    clock.append(datetime.date(1970, 1, 1))
    reports, ledger = some_reports(WEEKLY, 3), Ledger(tmp_path / "ledger.json")
    with fake_collector() as fake, Uploader(fake.address, WEEKLY, "t", tmp_path, labels=labels) as uploader:
        uploader.add(reports)
        uploader.report(ledger, {1})
        uploader.report(ledger, {1}, W46)  # somebody knows the day
        assert uploader.flush()
        assert len(fake.reports[told, None]) == 12
        assert fake.reports[told, "2026-W46"] == ledger.report(WEEKLY, {1}, W46)


def test_halves_are_of_the_same_stratum(tmp_path: Path, clock: list[datetime.date]) -> None:
    """Also if the power goes in between."""
    labels, reports = {"country": "fr", "version": "2"}, some_reports(WEEKLY, 100)
    with Uploader(NOBODY, WEEKLY, "t", tmp_path, labels=labels, linger=60) as uploader:
        uploader.add(reports)
    (folder,) = tmp_path.iterdir()
    (waiting,) = folder.glob("open*")
    waiting.rename(folder / f"20261118-{'0' * 32}@2026-W46_0003.split")
    with fake_collector() as fake:
        fake.largest = 3 * 30
        other = {"country": "de", "version": "1"}
        with Uploader(fake.address, WEEKLY, "t", tmp_path, labels=other) as uploader:
            assert uploader.flush()
        assert {said: rows(each) for said, each in fake.reports.items()} == {
            ("country=fr,version=2", "2026-W46"): rows(reports)
        }
        assert [len(payload) // 3 for _, payload in fake.batches.values()] == [25] * 4


def test_what_an_earlier_version_left_is_sent_without_a_period(tmp_path: Path) -> None:
    folder = tmp_path / PLAIN_WEEKLY.digest.hex()
    folder.mkdir()
    one, two = some_reports(PLAIN_WEEKLY, 4), some_reports(PLAIN_WEEKLY, 4)
    (folder / "open").write_bytes(one[:-1])  # the last was cut off
    (folder / f"20261101-{'a' * 32}.batch").write_bytes(two)
    with fake_collector() as fake, Uploader(fake.address, PLAIN_WEEKLY, "t", tmp_path) as uploader:
        assert uploader.flush()
        assert {said: rows(each) for said, each in fake.reports.items()} == {
            (None, None): rows(one[:9] + two)
        }


def test_a_task_with_neither_has_the_files_that_it_had(tmp_path: Path) -> None:
    with Uploader(NOBODY, PLAIN, "t", tmp_path, batch=5, linger=60) as uploader:
        uploader.add(some_reports(PLAIN, 12))
        eventually(lambda: uploader.trouble != "")
        names = files(tmp_path)
    assert [name.rpartition(".")[2] for name in names] == ["batch", "batch", "open"]
    assert all(len(name) == 41 + 6 for name in names[:2])


def test_what_is_refused_keeps_its_name_and_is_listed(tmp_path: Path, clock: list[datetime.date]) -> None:
    """The collector does not know the labels."""
    with fake_collector() as fake:
        fake.statuses = [422, 200, 422]
        labels = {"country": "de", "version": "1"}
        with Uploader(fake.address, WEEKLY, "t", tmp_path, labels=labels) as uploader:
            for day in (W46, W47, W46):
                clock.append(day)
                uploader.add(some_reports(WEEKLY, 2))
            assert not uploader.flush()
            assert len(uploader.refused) == 2
            assert all(path.name.endswith("_0000.refused") for path in uploader.refused)
            assert uploader.waiting == 0
            assert uploader.flush()


@pytest.mark.parametrize("mark", ["2026-W46_0004", "2026-W46\r\nX-Evil: 1", "W46", "2026-W46_zz00", "ä", "_"])
def test_a_name_that_nobody_wrote_is_set_aside_or_sent_but_blocks_nothing(mark: str, tmp_path: Path) -> None:
    folder = tmp_path / WEEKLY.digest.hex()
    folder.mkdir()
    reports, labels = some_reports(WEEKLY, 2), {"country": "de", "version": "1"}
    (folder / f"20261101-{'a' * 32}@{mark}.batch").write_bytes(reports)
    with fake_collector() as fake, Uploader(fake.address, WEEKLY, "t", tmp_path, labels=labels) as uploader:
        uploader.add(reports)
        uploader.flush()
        assert uploader.waiting == 0
        sent = {said for said in fake.reports if said[0] is not None}
        assert {labels for labels, _ in sent} == {"country=de,version=1"}
        assert len(uploader.refused) + len(fake.batches) == 2


def test_labels_are_checked_before_anything_is_made(tmp_path: Path) -> None:
    for task, labels, words in (
        (ONCE, None, "The label 'country' is missing"),
        (ONCE, {"country": "de"}, "The label 'version' is missing"),
        (ONCE, {"country": "de", "version": "3"}, "'3' is no version"),
        (ONCE, {"country": "de", "version": 2}, "is text"),
        (ONCE, {"country": "de", "version": None}, "is text"),
        (ONCE, {"country": "DE", "version": "1"}, "'DE' is no country"),
        (ONCE, {"country": "de\r\nHubbub-Period: x", "version": "1"}, "is no country"),
        (ONCE, {"country": "de,version=2", "version": "1"}, "is no country"),
        (ONCE, {"country": "\u202ede", "version": "1"}, "u202ede"),
        (ONCE, {"country": "de", "version": "1", "city": "x"}, "no label 'city'"),
        (PLAIN, {"country": "de"}, "it has none"),
    ):
        with refused(words):
            Uploader(NOBODY, task, "t", tmp_path / "spool", labels=labels)  # type: ignore[arg-type]
    assert not (tmp_path / "spool").exists()


def test_two_at_once_are_refused_also_with_other_labels(tmp_path: Path) -> None:
    labels = {"country": "de", "version": "1"}
    with (
        Uploader(NOBODY, ONCE, "t", tmp_path, labels=labels),
        refused("folder of its own"),
    ):
        Uploader(NOBODY, ONCE, "t", tmp_path, labels={**labels, "version": "2"})


def test_sealed_reports_say_their_labels_themselves(tmp_path: Path, clock: list[datetime.date]) -> None:
    """In their public beginning; after a move the same item is sent again, as it was made."""
    pair = KeyPair(bytes(range(32)))
    ledger, width = Ledger(tmp_path / "ledger.json"), sealed_width(WEEKLY)
    with fake_collector() as fake:
        for country, day in (("de", W46), ("fr", W46), ("fr", W47)):
            labels = {"country": country, "version": "2"}
            with Uploader(
                fake.address, WEEKLY, "t", tmp_path / "spool", sealed_for=pair.public, labels=labels
            ) as uploader:
                uploader.report(ledger, {1}, day)
                assert uploader.flush()
        ((said, items),) = fake.reports.items()
    assert said == (None, None)
    sent = [items[at : at + width] for at in range(0, len(items), width)]
    assert [stratum_from(WEEKLY, item[:12]) for item in sent] == [
        Stratum(("de", "2"), "2026-W46"),
        Stratum(("de", "2"), "2026-W46"),
        Stratum(("fr", "2"), "2026-W47"),
    ]
    assert sent[0] == sent[1]
    assert pair.open_each(WEEKLY, items)[1] == []


def test_sealing_with_labels_that_are_none_spends_nothing(tmp_path: Path) -> None:
    ledger, public = Ledger(tmp_path / "ledger.json"), KeyPair(bytes(range(32))).public
    for labels in (None, {"country": "de"}, {"country": "de", "version": "9"}):
        with refused("label" if labels is None or len(labels) == 1 else "no version"):
            ledger.sealed(WEEKLY, {1}, public, W46, labels)
    assert ledger.spent(WEEKLY) == 0


KILLED = """
import datetime, sys
from hubbub.device.upload import Uploader
from hubbub.protocol.strata import combination
task, reports = Task.load(sys.argv[1]), open(sys.argv[4], "rb").read()
for start in range(0, len(reports), 3):
    labels = dict(zip(sorted(task.labels), combination(task, start // 3 % 4)))
    uploader = Uploader(sys.argv[2], task, "t", sys.argv[3], labels=labels, linger=60)
    uploader.add(reports[start : start + 3])
    print(start, flush=True)
    if start % 2:
        uploader.close()
    else:
        uploader._spool.close()  # as if the process had ended
"""


def test_killed_between_uploaders_with_other_labels(tmp_path: Path) -> None:
    """A process that changes its labels with every report and is killed: what arrives has its own labels."""
    reports = some_reports(WEEKLY, 400, seed=5)
    WEEKLY.save(tmp_path / "task.toml")
    (tmp_path / "reports").write_bytes(reports)
    device = subprocess.Popen(
        [
            sys.executable,
            "-c",
            KILLED,
            *map(str, (tmp_path / "task.toml", NOBODY, tmp_path / "spool", tmp_path / "reports")),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert device.stdout is not None
    seen = -3
    for line in device.stdout:
        seen = int(line)
        if seen >= 3 * 40:
            device.kill()
            break
    seen = max([seen, *(int(line) for line in device.stdout)])
    device.stdout.close()
    device.wait()
    with fake_collector() as fake:
        labels = {"country": "de", "version": "1"}
        with Uploader(fake.address, WEEKLY, "t", tmp_path / "spool", labels=labels) as uploader:
            assert uploader.flush()
        names = sorted(WEEKLY.labels)
        for number in range(4):
            pairs = zip(names, combination(WEEKLY, number), strict=True)
            told = ",".join(f"{name}={value}" for name, value in pairs)
            assert labels_in(WEEKLY, told) == combination(WEEKLY, number)
            mine = [reports[at : at + 3] for at in range(3 * number, seen + 1, 12)]
            also = [reports[at : at + 3] for at in range(3 * number, seen + 4, 12)]  # taken, and not yet said
            found = rows(b"".join(each for said, each in fake.reports.items() if said[0] == told))
            assert found in (sorted(mine), sorted(also))


def test_a_batch_that_was_taken_and_not_answered_is_the_same_again(
    tmp_path: Path, clock: list[datetime.date]
) -> None:
    """The fake refuses the same id with another stratum; the week ends between the two attempts."""
    with fake_collector() as fake:
        fake.statuses = [0]
        for day, country in ((W46, "de"), (W47, "fr")):
            clock.append(day)
            labels = {"country": country, "version": "1"}
            with Uploader(fake.address, WEEKLY, "t", tmp_path, labels=labels, timeout=5) as uploader:
                if day == W46:
                    uploader.add(some_reports(WEEKLY, 3))
                    uploader._spool.finish()
                    eventually(lambda: len(fake.batches) == 1)
                    time.sleep(0.05)
                else:
                    assert uploader.flush()
        assert list(fake.reports) == [("country=de,version=1", "2026-W46")]


def test_a_service_counts_what_uploaders_say(tmp_path: Path) -> None:
    """Late, of today, and of next month: the last stays on the device, and keeps nothing else from being sent."""
    today = datetime.datetime.now(datetime.UTC).date()
    days = [today, today - datetime.timedelta(days=7), today + datetime.timedelta(days=31)]
    with collecting(f"sqlite:///{tmp_path}/s.db", WEEKLY) as collector:
        token = collector.service.tokens.new("upload")
        for country in ("de", "fr"):
            labels = {"country": country, "version": "2"}
            with Uploader(collector.address, WEEKLY, token, tmp_path / "spool", labels=labels) as uploader:
                for person, day in enumerate(days):
                    uploader.report(Ledger(tmp_path / f"{country}{person}.json"), {1}, day)
                assert not uploader.flush()
                assert uploader.waiting == (1 if country == "de" else 2)
                assert uploader.refused == []
        ahead = period_of(WEEKLY, days[2])
        kept = [
            (path.stem.partition("@")[2], path.stat().st_size)
            for path in (tmp_path / "spool").glob("*/*.batch")
        ]
        assert sorted(kept) == [(f"{ahead}_0001", 3), (f"{ahead}_0003", 3)]
        strata = collector.service.store.known_strata(WEEKLY.digest.hex())
        weeks = [period_of(WEEKLY, day) for day in days[:2]]
        told = {f"country={country},version=2@{week}" for country in ("de", "fr") for week in weeks}
        assert set(strata) == told
        assert collector.reports == 4
        assert collector.get(collector.path).json["rejected"] == {}
