"""Headers, keys and starts that nobody thought of."""

from __future__ import annotations

import csv
import io
import socket
import sqlite3
from pathlib import Path

import pytest
from collecting import SALT, collecting, some_reports
from live import ask

from helpers import refuse
from hubbub.collect.store import Store
from hubbub.collect.tokens import Tokens
from hubbub.primitives.text import cell, visible
from hubbub.protocol.task import Task

ODD = (
    "=1+1",
    '=HYPERLINK("http://x","y")',
    "+1+cmd|' /C calc'!A0",
    "-1+1",
    "@SUM(1)",
    "\tx",
    "＝1",
    "\u202eevil",
    "a\u2066b",
    "-5",
    "+0.5",
    "plain",
    "a=b",
    "'quoted",
)


@pytest.mark.parametrize(
    "origin",
    ["http://[", "http://]", "http://[::1", "//", "null", "", "http://\xff", "https://elsewhere.example"],
)
def test_an_origin_that_is_no_address(origin: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with collecting(f"sqlite:///{tmp_path}/s.db") as collector:
        for path in ("/login", "/logout"):
            answer = ask(collector.address + path, b"token=x", {"Origin": origin})
            assert (answer.status, answer.json["title"]) == (403, "not from here")
        here = ask(f"{collector.address}/login", b"token=x", {"Origin": collector.address})
        assert here.status == 401
    assert "a request failed" not in caplog.text


def test_no_cell_is_a_formula(tmp_path: Path) -> None:
    """What spreadsheets would compute is marked as text; numbers and plain keys are as they were."""
    task = Task.parse(
        {
            "name": "odd",
            "keys": {"kind": "closed", "vocabulary": list(ODD), "salt": SALT},
            "mechanism": {"name": "collision", "epsilon": 1.0, "max_entries": 2, "buckets": 8},
        }
    )
    with collecting(f"sqlite:///{tmp_path}/s.db", task) as collector:
        collector.send(some_reports(task, 50), "a")
        text = collector.get(f"{collector.path}/estimates.csv").body.decode()
        exact = collector.get(f"{collector.path}/estimates.json").json["estimates"]
    keys = [row["key"] for row in csv.DictReader(io.StringIO(text))]
    assert keys == [cell(key) for key in ODD]
    assert all(key.startswith("'") for key in keys[:7])
    assert keys[7:] == ["\\u202eevil", "a\\u2066b", "-5", "+0.5", "plain", "a=b", "'quoted"]
    assert not any(character in text for character in "\u202e\u2066")
    assert [row["key"] for row in exact] == list(ODD)  # JSON has them as they are, escaped


def test_text_that_is_seen() -> None:
    assert visible("abc שלום 👩\u200d🔬") == "abc שלום 👩\u200d🔬"
    assert visible("a\u202eb\x00\n\u2028") == "a\\u202eb\\u0000\\u000a\\u2028"


def test_a_busy_port_makes_no_tokens(tmp_path: Path) -> None:
    """They would be shown to nobody, and the next start would make none."""
    task, store = tmp_path / "task.toml", f"sqlite:///{tmp_path}/s.db"
    Task.parse(
        {
            "name": "t",
            "keys": {"kind": "closed", "size": 5},
            "mechanism": {"name": "collision", "epsilon": 1.0, "max_entries": 1},
        }
    ).save(task)
    with socket.create_server(("127.0.0.1", 0)) as busy:
        said = refuse("serve", task, "--store", store, "--port", busy.getsockname()[1])
    assert "can listen" in said
    opened = Store(store)
    assert Tokens(opened).all() == []
    opened.close()


def test_a_store_that_cannot_be_written_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that is mounted for reading only."""
    task = tmp_path / "task.toml"
    Task.parse(
        {
            "name": "t",
            "keys": {"kind": "closed", "size": 5},
            "mechanism": {"name": "collision", "epsilon": 1.0, "max_entries": 1},
        }
    ).save(task)
    assert "/proc/s.db" in refuse("serve", task, "--store", "sqlite:////proc/s.db", "--port", 0)
    connect = sqlite3.connect

    def read_only(path: str, *arguments: object, **options: object) -> sqlite3.Connection:
        return connect(f"file:{path}?mode=ro", *arguments, uri=True, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr("sqlite3.dbapi2.connect", read_only)
    said = refuse("serve", task, "--store", f"sqlite:///{tmp_path}/s.db", "--port", 0)
    assert "cannot be opened" in said
    assert "readonly" in said
