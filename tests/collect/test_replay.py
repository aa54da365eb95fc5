"""A report arrives once, whoever asks for it again; through the shuffler, whoever sends or copies it again, too."""

from __future__ import annotations

import datetime
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from collecting import Collector, collected_task, collecting, eventually
from live import ask, bearer

from helpers import contents, refused
from hubbub.collect import shuffler as module
from hubbub.collect.mixer import Mixer
from hubbub.collect.serving import serving
from hubbub.collect.shuffler import Shuffler, create_shuffler_app
from hubbub.device.client import Client
from hubbub.device.ledger import Ledger
from hubbub.device.upload import Uploader
from hubbub.protocol.periods import period_of
from hubbub.protocol.sealing import seal, sealed_width
from hubbub.protocol.strata import prefix_width
from hubbub.protocol.task import Task

DAY = datetime.date(2024, 3, 6)
NEXT = DAY + datetime.timedelta(days=1)
#: With 32 bits of seed, two of a few dozen fresh reports are alike with probability 1e-7 at most.
LONG_SEEDS = {"name": "collision", "epsilon": 1.0, "max_entries": 2, "buckets": 8, "seed_bits": 32}


class Route:
    """Devices' way to a real collector through a real shuffler."""

    def __init__(self, folder: Path, task: Task, collector: Collector, shuffling: Shuffler, url: str) -> None:
        self.folder, self.task, self.collector, self.shuffling, self.url = (
            folder,
            task,
            collector,
            shuffling,
            url,
        )
        self.public = collector.service.keys.public

    def uploader(self) -> Uploader:
        return Uploader(self.url, self.task, "up", self.folder / "spool", sealed_for=self.public)

    def send(self, *items: bytes) -> dict[str, int]:
        path = f"{self.url}/v2/tasks/{self.task.digest.hex()}/sealed"
        counts: dict[str, int] = ask(path, b"".join(items), bearer("up")).json
        return counts

    def strangers(self, count: int, day: datetime.date = DAY) -> list[bytes]:
        """Sealed reports of people of whom each reports once."""
        period = period_of(self.task, day)
        return [seal(Client(self.task).report({7}), self.public, self.task, period) for _ in range(count)]

    def arrived(self) -> list[list[bytes]]:
        """The reports that the collector has, crowd by crowd."""
        width = self.task.mechanism.layout.width
        kept = self.collector.service.store.kept(self.task.digest.hex())
        return [[body[i : i + width] for i in range(0, len(body), width)] for _, _, body, _ in kept]

    def opened(self, item: bytes) -> bytes:
        """What the collector sees in an item."""
        reports, bad = self.collector.service.keys.open_each(self.task, item)
        assert bad == []
        return reports.tobytes()

    def wait_for(self, reports: int) -> None:
        eventually(lambda: self.collector.reports >= reports)
        assert self.collector.reports == reports


@contextmanager
def routed(folder: Path, crowd: int, **rules: Any) -> Iterator[Route]:
    task = collected_task(mechanism=LONG_SEEDS, **rules)
    with collecting(f"sqlite:///{folder / 'store.db'}", task) as collector:
        token = collector.service.tokens.new("shuffler")
        mixing = Shuffler(Mixer(folder / "shuffler.db"), [task], collector.address, token, "up", crowd)
        with serving(create_shuffler_app(mixing)) as url:
            yield Route(folder, task, collector, mixing, url)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[datetime.date]:
    """The shuffler's day; a test may change it."""
    now = [DAY]
    monkeypatch.setattr(module, "today", lambda: now[0])
    return now


def most_alike(crowds: list[list[bytes]]) -> int:
    """How often the most frequent report is there."""
    return max(Counter(report for crowd in crowds for report in crowd).values())


# Asked again


@pytest.mark.parametrize("rules", [{}, {"period": "week"}], ids=["once", "weekly"])
def test_a_device_that_asks_again_and_again_is_counted_once(
    rules: dict[str, Any], tmp_path: Path, clock: list[datetime.date]
) -> None:
    """Three times with one uploader, then twice with another whose app changed its mind about the record; the
    first crowd leaves in between. One report arrives, no report is there twice, and the second crowd is without it."""
    with routed(tmp_path, 20, **rules) as route:
        ledger = Ledger(tmp_path / "ledger.json")
        with route.uploader() as uploader:
            for _ in range(3):
                uploader.report(ledger, {1}, DAY)
            assert uploader.flush()
        assert route.send(*route.strangers(19)) == {"accepted": 19, "repeated": 0}
        route.wait_for(20)
        with route.uploader() as uploader:
            for record in ({1}, {2, 3}):
                uploader.report(ledger, record, DAY)
            assert uploader.flush()
        assert route.send(*route.strangers(20)) == {"accepted": 20, "repeated": 0}
        route.wait_for(40)
        first, second = route.arrived()
        about = route.collector.service.overview(route.task)
    own = route.opened(ledger.sealed(route.task, {1}, route.public, DAY))
    assert Counter(first + second)[own] == 1
    assert own in first
    assert most_alike([first, second]) == 1
    assert ledger.spent(route.task) == 1.0
    assert about["guarantee"]["shuffled"]["crowd"] == 20


def test_several_reports_per_period_arrive_once_each_and_periods_do_not_mix(
    tmp_path: Path, clock: list[datetime.date]
) -> None:
    """Two a day, asked five times on each of two days: two of each day arrive, and no crowd has both days."""
    with routed(tmp_path, 12, period="day", reports_per_period=2) as route:
        ledger = Ledger(tmp_path / "ledger.json")
        with route.uploader() as uploader:
            for day in (DAY, NEXT):
                for _ in range(5):
                    uploader.report(ledger, {1}, day)
            assert uploader.flush()
        # Nine more of each day: 22 wait, enough for a crowd of 12, but of no day.
        route.send(*route.strangers(9, DAY), *route.strangers(9, NEXT))
        assert route.shuffling.step() == (True, 0.0)
        assert (route.shuffling.mixer.waiting(route.task), route.collector.reports) == (22, 0)
        route.send(*route.strangers(1, NEXT))
        route.wait_for(12)
        route.send(*route.strangers(2, DAY))
        route.wait_for(25)
        crowds = route.arrived()
        made = [bytes.fromhex(each["sealed"]) for day in (DAY, NEXT) for each in book(ledger, route, day)]
        own = [route.opened(item) for item in made]
        assert (len(own), most_alike(crowds)) == (4, 1)
        assert [len(set(crowd) & set(own[2:])) for crowd in crowds] == [2, 0]
        assert [len(set(crowd) & set(own[:2])) for crowd in crowds] == [0, 2]
        shuffled = route.collector.service.overview(route.task)["guarantee"]["shuffled"]
    assert (shuffled["crowd"], shuffled["per_person"]) == (12, 2)
    assert "up to 2 reports per person" in shuffled["words"]


def book(ledger: Ledger, route: Route, day: datetime.date) -> list[Any]:
    made = ledger._read(route.task).account(route.task).periods.get(period_of(route.task, day), [])
    return [each.as_dict() for each in made]


KILLED = """
import os, signal, sys
from hubbub.device.ledger import Ledger
from hubbub.protocol.task import Task
Ledger(sys.argv[2]).sealed(Task.load(sys.argv[1]), {1}, bytes.fromhex(sys.argv[3]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_between_the_ledger_and_the_uploader(tmp_path: Path) -> None:
    """What was made and not sent is sent when the app asks again, and it is the very same item."""
    with routed(tmp_path, 5) as route:
        route.task.save(tmp_path / "task.toml")
        ledger = Ledger(tmp_path / "ledger.json")
        command = [sys.executable, "-c", KILLED, tmp_path / "task.toml", ledger.path, route.public.hex()]
        assert subprocess.run(command).returncode == -signal.SIGKILL
        ((made,),) = [book(ledger, route, DAY)]
        with route.uploader() as uploader:
            uploader.report(ledger, {2})
            assert uploader.flush()
        route.send(*route.strangers(4))
        route.wait_for(5)
        assert ledger.sealed(route.task, {1}, route.public) == bytes.fromhex(made["sealed"])
        assert ledger.spent(route.task) == 1.0


def test_an_uploader_to_a_shuffler_seals_nothing_itself(tmp_path: Path) -> None:
    """It could not know whether a report is a replay. A uploader to a collector takes no sealed items either."""
    task = collected_task(mechanism=LONG_SEEDS)
    ledger, report = Ledger(tmp_path / "ledger.json"), Client(task).report({1})
    url = "http://127.0.0.1:9"
    with Uploader(url, task, "up", tmp_path / "spool", sealed_for=bytes(range(32))) as uploader:
        for reports in (ledger.report(task, {1}), report, report * sealed_width(task)):
            with refused("sealed once", "report(ledger, record)"):
                uploader.add(reports)
        for items in ([], [report], [bytes(sealed_width(task)), report], [bytes(2 * sealed_width(task))]):
            with refused(f"{sealed_width(task)} bytes"):
                uploader.add_sealed(items)
        with refused("spent on reports to a collector"):
            uploader.report(ledger, {1})
        assert uploader.waiting == 0
    with Uploader(url, task, "up", tmp_path / "spool") as uploader:
        with refused("shuffler", "sealed_for"):
            uploader.add_sealed([bytes(sealed_width(task))])
        uploader.report(ledger, {2})  # was given out above, to be sent from there
        assert uploader.waiting == 0


def test_a_device_that_asks_a_collector_again_is_counted_once(tmp_path: Path) -> None:
    """A collector knows no report again: three times a day for two days of one week, and a day of the next, are two
    reports, and so they are with another uploader."""
    task = collected_task(period="week")
    ledger = Ledger(tmp_path / "ledger.json")
    monday = datetime.date(2024, 3, 4)
    with collecting(f"sqlite:///{tmp_path / 'store.db'}", task) as collector:
        token = collector.service.tokens.new("upload")
        for _ in range(2):
            with Uploader(collector.address, task, token, tmp_path / "spool") as uploader:
                for days in (0, 0, 0, 1, 1, 1, 7):
                    uploader.report(ledger, {days}, monday + datetime.timedelta(days=days))
                assert uploader.flush()
        assert collector.reports == 2
    assert ledger.spent(task) == 2 * task.guarantee.epsilon


# Copied


def test_a_copied_item_adds_nothing_in_any_crowd_or_period(
    tmp_path: Path, clock: list[datetime.date]
) -> None:
    """Somebody records an item and sends it with the same crowd, with the next, under the name of another period and
    once the period is over; he may even set the shuffler's clock back. The report is counted once."""
    with routed(tmp_path, 6, period="day") as route:
        (item,) = route.strangers(1)
        label = prefix_width(route.task)
        assert route.send(item, item) == {"accepted": 1, "repeated": 1}
        assert route.send(item) == {"accepted": 0, "repeated": 1}
        route.send(*route.strangers(5))
        route.wait_for(6)
        assert route.send(item, *route.strangers(6)) == {"accepted": 6, "repeated": 1}
        route.wait_for(12)
        # Under another name it is another item to the shuffler, and the collector cannot open it.
        renamed = NEXT.isoformat().encode() + item[label:]
        assert route.send(renamed, *route.strangers(6, NEXT)) == {"accepted": 7, "repeated": 0}
        route.wait_for(18)
        assert route.collector.service.overview(route.task)["rejected"] == {
            "sealed for another key or task, or changed on the way": 1
        }
        clock[0] = DAY + datetime.timedelta(days=9)
        assert route.send(item) == {"accepted": 0, "repeated": 0, "refused": 1}
        route.shuffling.step()
        clock[0] = DAY
        assert route.send(item, *route.strangers(6)) == {"accepted": 0, "repeated": 0, "refused": 7}
        route.shuffling.step()
        assert route.shuffling.mixer.waiting(route.task) == 0
        crowds = route.arrived()
    assert [len(crowd) for crowd in crowds] == [6, 6, 6]
    assert most_alike(crowds) == 1


# Periods end


@pytest.mark.parametrize(
    ("period", "last"), [("day", 8), ("week", 12), ("month", 33)], ids=["day", "week", "month"]
)
def test_a_period_is_open_for_a_week_after_its_end(
    period: str, last: int, tmp_path: Path, clock: list[datetime.date]
) -> None:
    """6 March 2024 is a Wednesday. A day more is for devices east of Greenwich, or west of it."""
    with routed(tmp_path, 1000, period=period) as route:
        for offset, accepted in ((-1, 1), (0, 1), (last, 1), (last + 1, 0)):
            clock[0] = DAY + datetime.timedelta(days=offset)
            answer = route.send(*route.strangers(1, DAY))
            assert (answer["accepted"], answer.get("refused", 0)) == (accepted, 1 - accepted), offset
        clock[0] = DAY
        nonsense = b"x" * sealed_width(route.task)
        assert route.send(nonsense, *route.strangers(1))["refused"] >= 1


def test_what_never_made_a_crowd_is_dropped_with_its_period_and_said(
    tmp_path: Path, clock: list[datetime.date], caplog: pytest.LogCaptureFixture
) -> None:
    """Also across a restart; the periods that are still open keep what they have."""
    with routed(tmp_path, 6, period="day") as route:
        left, waiting, late = route.strangers(6), route.strangers(4), route.strangers(3, NEXT)
        route.send(*left)
        route.wait_for(6)
        route.send(*waiting, *late)
    clock[0] = DAY + datetime.timedelta(days=9)
    with routed(tmp_path, 6, period="day") as again:
        eventually(lambda: again.shuffling.mixer.waiting(again.task) == 3)
        eventually(lambda: "dropped 4 reports" in caplog.text)
        stored = b"".join(contents(tmp_path).values())
        assert not any(item[12:28] in stored for item in waiting)
        route_answer = again.send(*left, *waiting, *late)
        assert route_answer == {"accepted": 0, "repeated": 3, "refused": 10}
        again.send(*again.strangers(3, NEXT))
        again.wait_for(12)


def test_a_crowd_of_two_periods_is_refused_by_the_collector(tmp_path: Path) -> None:
    """No shuffler of ours sends one; from another it would hold more reports of a person than is promised for."""
    with routed(tmp_path, 6, period="day") as route:
        path = route.collector.shuffled
        mixed = b"".join([*route.strangers(3), *route.strangers(3, NEXT)])
        answer = route.collector.upload(mixed, "mixed", path=path)
        assert (answer.status, "one period" in answer.json["detail"]) == (422, True)
        assert route.collector.upload(b"".join(route.strangers(6)), "one", path=path).json["accepted"] == 6
