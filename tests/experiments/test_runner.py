"""The engine of `hubbub reproduce`: resumed after any interruption, the same bytes however it was run."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from helpers import contents, refused
from hubbub.experiments.runner import Experiment, Job, Request, Row, averaged, to_csv

#: What the runs below do; slow enough to be killed in the middle.
JOBS = 6


def work(data: str, point: float, repetition: int, seconds: float) -> list[Row]:
    """Numbers from the arguments alone, and a note in a log of what was run."""
    time.sleep(seconds)
    rng = np.random.default_rng(repetition)
    with Path(data).open("a") as log:
        log.write(f"{repetition}\n")
    return [{"point": point, "error": float(rng.random()) / 3, "name": f"job, {side}"} for side in "ab"]


def experiment(log: Path, seconds: float = 0.0, jobs: int = JOBS) -> Experiment:
    def listed(request: Request) -> list[Job]:
        arguments = ({"data": str(log), "point": r % 2 + 0.1, "repetition": r} for r in range(jobs))
        return [Job(work, {**each, "seconds": seconds}) for each in arguments]

    return Experiment("trial", "A trial", listed, summarize=lambda rows: averaged(rows, ["point", "name"]))


def runs(log: Path) -> list[str]:
    return sorted(log.read_text().split())


def table(folder: Path, log: Path, workers: int = 1) -> bytes:
    folder.mkdir(exist_ok=True)
    experiment(log).run(folder, Request(), workers)
    return (folder / "trial.csv").read_bytes()


def test_one_worker_or_two_write_the_same(tmp_path: Path) -> None:
    one = table(tmp_path / "one", tmp_path / "log")
    assert one == table(tmp_path / "two", tmp_path / "log", workers=2)
    assert one.decode().splitlines()[0] == "point,name,repetitions,error,error_error"
    assert len(one.decode().splitlines()) == 5
    assert set(contents(tmp_path / "one")) == {"trial.csv", "trial.md", "trial.times.csv"}
    times = (tmp_path / "one" / "trial.times.csv").read_text()
    assert str(tmp_path) not in times
    assert len(times.splitlines()) == 1 + JOBS


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_run_goes_on(workers: int, tmp_path: Path) -> None:
    """Stopped after three jobs, with the last line of the journal cut off: two are kept, four are run."""
    whole = table(tmp_path / "whole", tmp_path / "log")
    folder, log = tmp_path / "stopped", tmp_path / "stopped.log"
    folder.mkdir()
    done = []

    def stop_after_three(jobs: int) -> None:
        done.append(jobs)
        if sum(done) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiment(log).run(folder, Request(), 1, stop_after_three)
    journal = folder / ".trial.journal"
    assert list(contents(folder)) == [".trial.journal"]
    journal.write_text(journal.read_text()[:-20])
    assert runs(log) == ["0", "1", "2"]
    assert table(folder, log, workers) == whole
    assert runs(log) == ["0", "1", "2", "2", "3", "4", "5"]
    assert not journal.exists()


def test_a_full_disk_is_a_sentence_and_what_was_finished_stays(tmp_path: Path) -> None:
    """Files may grow to 400 bytes: room for two jobs of the journal and a part of the third."""
    whole = table(tmp_path / "whole", tmp_path / "log")
    folder, log = tmp_path / "full", tmp_path / "full.log"
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, most))
    try:
        with refused("trial.journal cannot be written"):
            table(folder, log)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert runs(log) == ["0", "1", "2"]
    assert table(folder, log) == whole
    assert runs(log) == ["0", "1", "2", "2", "3", "4", "5"]


def test_a_journal_of_nonsense_is_no_journal(tmp_path: Path) -> None:
    whole = table(tmp_path / "whole", tmp_path / "log")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / ".trial.journal").write_bytes(b'\xff\xfe\n5\n[1]\n{"a": 1}\n[[], 2, 3, 4]\nnull\n')
    assert table(tmp_path / "odd", tmp_path / "log") == whole


def test_a_killed_process_loses_no_finished_job(tmp_path: Path) -> None:
    """SIGKILL while jobs run: what the journal has is not run again, and the table has the same bytes."""
    whole = table(tmp_path / "whole", tmp_path / "log")
    folder, log = tmp_path / "killed", tmp_path / "killed.log"
    folder.mkdir()
    code = (
        "import sys; from pathlib import Path; sys.path[:0] = sys.argv[3:]; import test_runner as t; "
        "t.experiment(Path(sys.argv[2]), 0.2).run(Path(sys.argv[1]), t.Request())"
    )
    here = Path(__file__).parent
    command = [sys.executable, "-c", code, str(folder), str(log), str(here), str(here.parent)]
    process = subprocess.Popen(command)
    journal = folder / ".trial.journal"
    limit = time.monotonic() + 60
    while not journal.exists() or journal.read_text().count("\n") < 2:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < limit
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = journal.read_text().count("\n")
    assert kept < JOBS
    before = len(runs(log))
    experiment(log, 0.2).run(folder, Request())
    assert (folder / "trial.csv").read_bytes() == whole
    assert len(runs(log)) - before == JOBS - kept


def test_other_journals_and_other_jobs_are_not_mixed_in(tmp_path: Path) -> None:
    """A journal line counts for the same function and arguments only; rubbish lines are dropped."""
    log = tmp_path / "log"
    whole = table(tmp_path / "whole", log)
    folder = tmp_path / "mixed"
    folder.mkdir()
    jobs = list(experiment(log).jobs(Request()))
    slower = list(experiment(log, seconds=1.0).jobs(Request()))
    wrong = [{"point": 9.0, "error": 9.0, "name": "wrong"}]
    lines = [json.dumps([job.key, wrong, 1.0]) for job in slower] + ["rubbish", '["too", "short"]']
    (folder / ".trial.journal").write_text("\n".join(lines))
    assert table(folder, log) == whole
    assert len({job.key for job in [*jobs, *slower]}) == 2 * JOBS


def test_averages_with_standard_errors() -> None:
    rows = [{"k": k, "x": x} for k, x in ((1, 2.0), (2, 5.0), (1, 4.0), (1, 6.0))]
    first, second = averaged(rows, ["k"])
    assert first == {"k": 1, "repetitions": 3, "x": 4.0, "x_error": pytest.approx(2 / 3**0.5)}
    assert second == {"k": 2, "repetitions": 1, "x": 5.0}
    assert to_csv([second]) == b"k,repetitions,x\n2,1,5.0\n"
