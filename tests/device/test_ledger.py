"""The ledger: a device never says more than its budget allows."""

from __future__ import annotations

import datetime
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import contents, refused
from hubbub.collect.keypair import KeyPair
from hubbub.device import ledger as module
from hubbub.device.budget import Budget
from hubbub.device.client import Client
from hubbub.device.ledger import Ledger, period_of
from hubbub.primitives.envelope import write_atomic
from hubbub.primitives.errors import BudgetSpent
from hubbub.protocol.sealing import sealed_width

PAIR = KeyPair(bytes(range(32)))
DAY = datetime.date(2024, 12, 30)
NEXT = DAY + datetime.timedelta(days=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.json"


@pytest.mark.parametrize(
    ("period", "name"), [("once", "once"), ("day", "2024-12-30"), ("week", "2025-W01"), ("month", "2024-12")]
)
def test_names_of_periods(period: str, name: str, make_task: Any) -> None:
    assert period_of(make_task(period=period), DAY) == name


def test_a_second_question_gets_the_first_answer(path: Path, make_task: Any) -> None:
    """Replayed even when the record has changed, by the same object or by another."""
    task = make_task(seed_bits=64)
    first = Ledger(path).report(task, ["1"])
    assert len(first) == task.mechanism.layout.width
    assert Ledger(path).report(task, ["2", "3"]) == first
    assert Ledger(path).report(task, [], NEXT) == first
    assert Ledger(path).spent(task) == 1.0


def test_a_fresh_report_beyond_the_budget_is_refused(path: Path, make_task: Any) -> None:
    task, ledger = make_task(), Ledger(path)
    ledger.fresh(task, ["1"])
    before = contents(path.parent)
    with pytest.raises(BudgetSpent, match="1 of 1 reports made"):
        ledger.fresh(task, ["1"])
    assert contents(path.parent) == before
    assert ledger.spent(task) == 1.0


def test_a_new_period_allows_a_new_report(path: Path, make_task: Any) -> None:
    task, ledger = make_task(period="day", epsilon=0.5, seed_bits=64), Ledger(path)
    first = ledger.report(task, ["1"], DAY)
    second = ledger.report(task, ["1"], NEXT)
    assert first != second
    assert ledger.report(task, ["1"], DAY) == first
    assert ledger.spent(task) == 1.0
    with pytest.raises(BudgetSpent, match="2024-12-31"):
        ledger.fresh(task, ["1"], NEXT)


def test_several_reports_per_period(path: Path, make_task: Any) -> None:
    """With 64 bits of seed two fresh reports are different but for 2^-64."""
    task, ledger = make_task(reports_per_period=3, seed_bits=64, epsilon=0.25), Ledger(path)
    made = [ledger.report(task, ["1"]) for _ in range(3)]
    assert len(set(made)) == 3
    assert ledger.report(task, ["1"]) == made[-1]
    assert ledger.spent(task) == 0.75


def test_tasks_have_budgets_of_their_own(path: Path, make_task: Any) -> None:
    one, two, ledger = make_task(epsilon=1.0), make_task(epsilon=2.0), Ledger(path)
    ledger.fresh(one, ["1"])
    assert ledger.spent(two) == 0.0
    ledger.fresh(two, ["1"])
    assert (ledger.spent(one), ledger.spent(two)) == (1.0, 2.0)


def test_what_is_no_record_spends_nothing(path: Path, make_task: Any) -> None:
    with refused("neither"):
        Ledger(path).report(make_task(), "no record")
    assert Ledger(path).spent(make_task()) == 0.0
    assert not path.exists()


def periods_in(path: Path, task: Any) -> Any:
    return json.loads(path.read_text())["tasks"][task.digest.hex()]["periods"]


def book(task: Any, made: Any) -> str:
    return json.dumps({task.digest.hex(): {"once": made}})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "5",
        '{"a": 5}',
        "\udcff",
        "[" * 100_000,
        "zz",
        5,
        {},
        ["zz"],
        [5],
        ["00"],
        ["00" * 50],
        [None],
    ],
)
def test_a_corrupt_ledger_is_refused_and_left_alone(text: Any, path: Path, make_task: Any) -> None:
    """Broken JSON, or a book whose entry for this task is no list of this task's reports."""
    task = make_task()
    broken = text if isinstance(text, str) and text != "zz" else book(task, text)
    path.write_text(broken, errors="surrogateescape")
    for ask in (Ledger(path).report, Ledger(path).fresh):
        with refused(str(path)):
            ask(task, ["1"])
    with refused(str(path)):
        Ledger(path).spent(task)
    assert path.read_text(errors="surrogateescape") == broken


def test_a_report_is_on_disk_before_it_is_returned(
    path: Path, make_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stops the write, no bytes get out, and the old ledger is as it was."""
    task = make_task(reports_per_period=5)
    Ledger(path).fresh(task, ["1"])
    before = path.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with refused("No space left on device"):
        Ledger(path).report(task, ["1"])
    assert path.read_bytes() == before
    monkeypatch.undo()
    assert Ledger(path).spent(task) == 1.0


def test_a_returned_report_is_in_the_ledger(
    path: Path, make_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is complete when write_atomic returns, which is before the report does."""
    written: list[bytes] = []

    def spy(target: Path, data: bytes, private: bool) -> None:
        write_atomic(target, data, private)
        written.append(Path(target).read_bytes())

    monkeypatch.setattr(module, "write_atomic", spy)
    payload = Ledger(path).report(make_task(), ["1"])
    assert len(written) == 1
    assert payload.hex() in written[0].decode()


def test_a_power_cut_cannot_undo_the_ledger(
    path: Path, make_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new file and then, after the renaming, its folder are forced to disk: a rename alone may be lost."""
    order: list[str] = []
    sync, rename = os.fsync, os.replace

    def spy_sync(handle: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    def spy_rename(*names: Any) -> None:
        order.append("rename")
        rename(*names)

    monkeypatch.setattr("os.fsync", spy_sync)
    monkeypatch.setattr("os.replace", spy_rename)
    Ledger(path).report(make_task(), ["1"])
    assert order == ["file", "rename", *([] if os.name == "nt" else ["folder"])]


def test_a_ledger_that_cannot_be_kept_is_refused(tmp_path: Path, make_task: Any) -> None:
    with refused("missing"):
        Ledger(tmp_path / "missing" / "ledger.json").report(make_task(), ["1"])
    assert contents(tmp_path) == {}


def test_a_ledger_behind_a_link_stays_there(tmp_path: Path, make_task: Any) -> None:
    """On a volume that outlives a container, say: a new link to the same ledger finds what was spent, and one lock."""
    volume, link, other = tmp_path / "volume", tmp_path / "ledger.json", tmp_path / "other.json"
    volume.mkdir()
    for name in (link, other):
        name.symlink_to(volume / "ledger.json")
    task = make_task()
    report = Ledger(link).fresh(task, ["1"])
    assert link.is_symlink()
    assert sorted(contents(volume)) == ["ledger.json", "ledger.json.lock"]
    with refused("is spent"):
        Ledger(other).fresh(task, ["1"])
    assert Ledger(other).report(task, ["1"]) == report
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledger.json", "other.json", "volume"]


# For a shuffler


def test_a_sealed_report_is_sealed_once(path: Path, make_task: Any) -> None:
    """The same bytes again, whatever the record is by then, from the same object or from another."""
    task = make_task(period="week", seed_bits=64)
    first = Ledger(path).sealed(task, ["1"], PAIR.public, DAY)
    assert first[:8] == b"2025-W01"
    assert len(first) == sealed_width(task)
    for record in (["1"], ["2", "3"]):
        assert Ledger(path).sealed(task, record, PAIR.public, NEXT) == first
    assert Ledger(path).sealed(task, ["1"], KeyPair.fresh().public, DAY) == first
    opened, bad = PAIR.open_each(task, first)
    assert (opened.shape, bad) == ((1, task.mechanism.layout.width), [])
    assert opened.tobytes().hex() not in path.read_text()
    assert Ledger(path).spent(task) == 1.0
    later = Ledger(path).sealed(task, ["1"], PAIR.public, DAY + datetime.timedelta(days=7))
    assert later[:8] == b"2025-W02"
    assert PAIR.open_each(task, later)[0].tobytes() != opened.tobytes()
    assert Ledger(path).spent(task) == 2.0


def test_several_sealed_reports_per_period(path: Path, make_task: Any) -> None:
    task, ledger = make_task(reports_per_period=3, seed_bits=64), Ledger(path)
    made = [ledger.sealed(task, ["1"], PAIR.public) for _ in range(5)]
    assert len(set(made[:3])) == 3
    assert made[2:] == [made[2]] * 3
    assert len({report.tobytes() for report in PAIR.open_each(task, b"".join(made[:3]))[0]}) == 3
    assert ledger.spent(task) == 3.0


def test_a_sealed_report_is_on_disk_before_it_is_returned(
    path: Path, make_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(reports_per_period=2)

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("os.replace", fail)
        with refused("No space left on device"):
            Ledger(path).sealed(task, ["1"], PAIR.public)
    assert not path.exists()
    item = Ledger(path).sealed(task, ["1"], PAIR.public)
    assert periods_in(path, task) == {
        "once": [{"sealed": item.hex(), "day": datetime.date.today().isoformat()}]
    }


def test_a_report_takes_one_way(path: Path, make_task: Any) -> None:
    """What may have reached the collector bare is not sealed, and what was sealed is not handed out bare."""
    task, ledger = make_task(period="day", seed_bits=64), Ledger(path)
    bare = ledger.report(task, ["1"], DAY)
    sealed = ledger.sealed(task, ["1"], PAIR.public, NEXT)
    before = path.read_bytes()
    with pytest.raises(BudgetSpent, match="spent on reports to a collector"):
        ledger.sealed(task, ["1"], PAIR.public, DAY)
    with pytest.raises(BudgetSpent, match="spent on reports to a shuffler"):
        ledger.report(task, ["1"], NEXT)
    assert path.read_bytes() == before
    assert (ledger.report(task, [], DAY), ledger.sealed(task, [], PAIR.public, NEXT)) == (bare, sealed)


def test_both_ways_share_one_budget(path: Path, make_task: Any) -> None:
    task, ledger = make_task(reports_per_period=3, seed_bits=64), Ledger(path)
    bare, sealed = ledger.report(task, ["1"]), ledger.sealed(task, ["1"], PAIR.public)
    last = ledger.report(task, ["1"])
    assert ledger.spent(task) == 3.0
    for _ in range(2):
        assert ledger.report(task, ["1"]) == last != bare
        assert ledger.sealed(task, ["1"], PAIR.public) == sealed
    assert ledger.spent(task) == 3.0


def test_a_ledger_of_the_first_kind_is_read(path: Path, make_task: Any) -> None:
    """Lists of bare reports, as ledgers were before anything was sealed; they are written anew, with days."""
    task = make_task(period="day", seed_bits=64)
    old = Client(task).report(["1"])
    path.write_text(json.dumps({task.digest.hex(): {DAY.isoformat(): [old.hex()]}}))
    assert Ledger(path).report(task, ["2"], DAY) == old
    with pytest.raises(BudgetSpent):
        Ledger(path).sealed(task, ["2"], PAIR.public, DAY)
    new = Ledger(path).report(task, ["2"], NEXT)
    days = {DAY.isoformat(): old, NEXT.isoformat(): new}
    assert periods_in(path, task) == {day: [{"report": made.hex(), "day": day}] for day, made in days.items()}


def test_what_cannot_be_sealed_spends_nothing(path: Path, make_task: Any) -> None:
    for key in (b"", bytes(32)):
        with refused("public key"):
            Ledger(path).sealed(make_task(), ["1"], key)
    with refused("neither"):
        Ledger(path).sealed(make_task(), "no record", PAIR.public)
    assert not path.exists()


@pytest.mark.parametrize(
    "made", [{}, {"sealed": 5}, {"sealed": "00"}, {"sealed": None}, {"report": "00" * 4}]
)
def test_a_corrupt_sealed_report_is_refused(made: Any, path: Path, make_task: Any) -> None:
    task = make_task()
    path.write_text(book(task, [made]))
    for ask in (Ledger(path).report, lambda *given: Ledger(path).sealed(*given, PAIR.public)):
        with refused(str(path)):
            ask(task, ["1"])


def test_processes_that_ask_together_get_one_sealed_report(path: Path, make_task: Any) -> None:
    task = make_task(seed_bits=64)
    said = race(path, task, "sealed", arguments=(PAIR.public.hex(),))
    assert said == [Ledger(path).sealed(task, ["1"], PAIR.public).hex()] * 4
    assert Ledger(path).spent(task) == 1.0


# Several processes


def test_a_process_that_dies_leaves_no_lock_behind(path: Path, make_task: Any) -> None:
    """The operating system lets go of it, so the next one does not wait."""
    code = """
import os, sys
from pathlib import Path
from hubbub.primitives.envelope import locked
with locked(sys.argv[1]):
    print(Path(sys.argv[1] + ".lock").exists(), flush=True)
    os._exit(9)
"""
    died = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)
    assert (died.returncode, died.stdout.strip()) == (9, "True")
    Ledger(path).fresh(make_task(), ["1"])


RACE = """
import sys
from hubbub.device.ledger import Ledger
from hubbub.primitives.errors import BudgetSpent
from hubbub.protocol.task import Task
task, ledger, method = Task.load(sys.argv[1]), Ledger(sys.argv[2]), sys.argv[3]
more = [bytes.fromhex(word) for word in sys.argv[4:]]
print("ready", flush=True)
sys.stdin.readline()
try:
    print(getattr(ledger, method)(task, ["1"], *more).hex())
except BudgetSpent:
    print("spent")
"""


def race(path: Path, task: Any, method: str, runners: int = 4, arguments: tuple[str, ...] = ()) -> list[str]:
    """What several processes say that ask one ledger at the same moment."""
    task.save(path.with_name("task.toml"))
    command = [sys.executable, "-c", RACE, path.with_name("task.toml"), path, method, *arguments]
    crowd = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(runners)
    ]
    for process in crowd:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in crowd:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [process.communicate()[0].strip() for process in crowd]


def test_two_processes_cannot_both_get_a_fresh_report(path: Path, make_task: Any) -> None:
    task = make_task(seed_bits=64)
    said = race(path, task, "fresh")
    assert said.count("spent") == 3
    assert Ledger(path).spent(task) == 1.0
    assert Ledger(path).report(task, ["1"]).hex() in said


def test_processes_together_keep_the_owners_budget(path: Path, make_task: Any) -> None:
    """Room for two of four: two get a report each, and two are silent."""
    task = make_task(seed_bits=64, reports_per_period=4)
    Ledger(path).limit(Budget(2.0, "ever"))
    said = race(path, task, "fresh")
    assert said.count("spent") == 2
    assert len(set(said)) == 3
    assert Ledger(path).spent(task) == 2.0


def test_processes_that_ask_together_get_one_report(path: Path, make_task: Any) -> None:
    task = make_task(seed_bits=64)
    said = race(path, task, "report")
    assert said == [Ledger(path).report(task, ["1"]).hex()] * 4
    assert Ledger(path).spent(task) == 1.0


def test_who_is_overtaken_replays(path: Path, make_task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process spends the budget between our look into the ledger and our turn to write."""
    task = make_task(seed_bits=64)
    fresh = Ledger.fresh

    def overtaken(self: Ledger, *arguments: Any) -> bytes:
        fresh(Ledger(path), *arguments)
        return fresh(self, *arguments)

    monkeypatch.setattr(Ledger, "fresh", overtaken)
    said = Ledger(path).report(task, ["1"])
    assert Ledger(path).report(task, ["1"]) == said
    assert Ledger(path).spent(task) == 1.0
