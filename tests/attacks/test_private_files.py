"""Other users of the machine: no file that holds reports, tokens' digests, keys or a ledger is theirs to read."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from collecting import collected_task, collecting, some_reports

from helpers import refuse, refused, succeed
from hubbub.collect.mixer import Mixer
from hubbub.collect.store import Store
from hubbub.collect.tokens import Tokens
from hubbub.device.ledger import Ledger
from hubbub.device.upload import Uploader
from hubbub.primitives.envelope import keep_private
from hubbub.protocol.sealing import sealed_width

TASK = collected_task()


@pytest.fixture(autouse=True)
def careless() -> Iterator[None]:
    """Whoever starts the programs lets everybody read what they write."""
    before = os.umask(0)
    yield
    os.umask(before)


def others(folder: Path) -> dict[str, str]:
    """What others may do with anything below a folder."""
    modes = {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    assert modes
    return {name: oct(mode) for name, mode in modes.items() if mode & 0o077}


def use_device(folder: Path) -> None:
    ledger = Ledger(folder / "ledger.json")
    with Uploader("http://127.0.0.1:9", TASK, "t", folder / "spool", batch=3, linger=60) as uploader:
        uploader.report(ledger, {1})
        uploader.add(some_reports(TASK, 4))
        uploader._spool.finish()
        uploader._spool.halve(uploader._spool.batches()[0])
        uploader._spool.set_aside(uploader._spool.batches()[0])
    ledger.report(TASK, {2})


def use_collector(folder: Path) -> None:
    with collecting(f"sqlite:///{folder}/s.db", TASK) as collector:
        collector.send(some_reports(TASK, 5), "a")
        assert collector.reports >= 5
        assert {path.name for path in folder.iterdir()} == {"s.db", "s.db-wal", "s.db-shm"}
        assert others(folder) == {}


def use_shuffler(folder: Path) -> None:
    mixer = Mixer(folder / "shuffler.db")
    mixer.add(TASK, [os.urandom(sealed_width(TASK)) for _ in range(2000)])
    mixer.close_crowds(TASK, 2)
    assert others(folder) == {}
    mixer.close()


@pytest.mark.parametrize("use", [use_device, use_collector, use_shuffler])
def test_files_are_for_their_owner(use: object, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """When they are made; and if somebody has opened them since, from the next start on, which says so."""
    assert callable(use)
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    use(home)
    found = {name: mode for name, mode in others(home).items() if name != "spool"}  # holds folders of its own
    assert found == {}
    files = [
        path for path in home.rglob("*") if path.is_file() and path.name not in ("lock", "ledger.json.lock")
    ]
    for path in files:
        path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        use(home)
    assert "could be read by others" in caplog.text
    left = {name for name in others(home) if not name.startswith("spool")}
    assert left == set()


def test_a_spool_that_was_open_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / TASK.digest.hex()
    folder.mkdir(mode=0o755)
    with Uploader("http://127.0.0.1:9", TASK, "t", tmp_path):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert "could be read by others" in caplog.text


def test_a_file_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """One sentence, and no trace."""
    with refused("/proc/hubbub.db", "cannot be kept private"):
        Store("sqlite:////proc/hubbub.db")
    with refused("/proc/hubbub.db"):
        Mixer("/proc/hubbub.db")
    with refused("cannot be kept private"):
        keep_private(tmp_path / "none")


def test_the_file_of_the_first_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For its owner's eyes only, whatever the umask is, and never written over: then no token is made either."""
    monkeypatch.setattr("hubbub.collect.serving.run", lambda plan, sock: sock.close())
    monkeypatch.chdir(tmp_path)
    TASK.save(tmp_path / "task.toml")
    file = tmp_path / "tokens.json"
    words = ("serve", "task.toml", "--port", 0, "--first-tokens", file, "--store")
    said = succeed(*words, "sqlite:///one.db")
    assert (said["tokens"], said["tokens_file"]) == ({}, str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    written = file.read_bytes()
    with closing(Store("sqlite:///one.db")) as store:
        grants = {role: Tokens(store).grant_of(token) for role, token in json.loads(written).items()}
    assert {role: grant and grant.role for role, grant in grants.items()} == {
        "upload": "upload",
        "analyst": "analyst",
    }
    assert "tokens.json" in refuse(*words, "sqlite:///two.db")
    with closing(Store("sqlite:///two.db")) as store:
        assert Tokens(store).all() == []
    assert succeed(*words, "sqlite:///one.db")["tokens_file"] is None  # a store that has tokens needs no file
    assert file.read_bytes() == written
