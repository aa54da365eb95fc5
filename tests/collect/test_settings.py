"""Settings: a file, the environment above it, and everything else as it is."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from collecting import collected_task, collecting
from deployed import DEPLOY
from live import ask

from helpers import contents, refuse, run_cli, succeed
from hubbub.collect import serving
from hubbub.collect.settings import Settings, load_settings


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is set where the tests run."""
    for name in ("settings", *Settings.model_fields):
        monkeypatch.delenv(f"HUBBUB_{name.upper()}", raising=False)


def test_the_environment_wins_over_the_file_and_both_over_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("queue = 7\nfold_every = 0.5\n")
    monkeypatch.setenv("HUBBUB_QUEUE", "9")
    monkeypatch.setenv("HUBBUB_SETTINGS", str(file))
    rows = succeed("serve", "--show-settings")["settings"]
    assert rows.keys() == Settings.model_fields.keys()
    assert (rows["queue"]["value"], rows["queue"]["source"]) == (9, "HUBBUB_QUEUE")
    assert (rows["fold_every"]["value"], rows["fold_every"]["source"]) == (0.5, str(file))
    assert (rows["memory"]["value"], rows["memory"]["source"]) == (256 << 20, "default")
    shown = " ".join(run_cli("serve", "--show-settings").output.split())
    assert "needs a restart" in shown
    assert all(name in shown for name in rows)


def test_both_commands_use_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Any] = []
    monkeypatch.setattr(serving, "run", lambda plan, sock: used.append(plan.settings))
    monkeypatch.setattr(serving, "run_app", lambda app, sock: (used.append(app.state.settings), sock.close()))
    monkeypatch.setenv("HUBBUB_HEADER_SECONDS", "3.5")
    task = tmp_path / "task.toml"
    collected_task().save(task)
    succeed("serve", task, "--store", f"sqlite:///{tmp_path}/s.db", "--port", 0)
    tokens = ("--token", "a", "--upload-token", "b", "--collector", "http://x", "--store", tmp_path / "x.db")
    succeed("shuffler", task, *tokens, "--port", 0)
    assert [settings.header_seconds for settings in used] == [3.5, 3.5]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("queue = 0", "queue"),
        ("queue = 'many'", "queue"),
        ("patience = inf", "patience"),
        ("kueue = 3", "kueue"),
        ("queue = ", "not a settings file"),
        ("\xff", "not a settings file"),
        ("queue = " + "[" * 2000, "not a settings file"),
    ],
)
def test_what_cannot_be_used_is_refused(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_bytes(text.encode("latin-1"))
    said = refuse("serve", "--settings", file, "--show-settings")
    assert words in said
    assert str(file) in said
    assert "cannot be read" in refuse("serve", "--settings", tmp_path / "none.toml", "--show-settings")


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBBUB_MEMORY", "lots")
    assert "HUBBUB_MEMORY" in refuse("serve", "--show-settings")


def test_forms_are_taken_from_the_origins_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUBBUB_ORIGINS", "https://stats.example https://other.example")
    origins = load_settings(None)[0].origins
    assert origins == ("https://stats.example", "https://other.example")
    named = {"Origin": "https://stats.example"}
    with collecting(f"sqlite:///{tmp_path}/s.db", origins=origins) as collector:
        form = f"token={collector.token}".encode()
        for site in ({}, {"Sec-Fetch-Site": "cross-site"}):
            assert ask(f"{collector.address}/login", form, {**named, **site}).status == 303
            other = {"Origin": "https://stats.example.org", **site}
            assert ask(f"{collector.address}/login", form, other).status == 403
    with collecting(f"sqlite:///{tmp_path}/s.db") as collector:
        form = f"token={collector.token}".encode()
        assert ask(f"{collector.address}/login", form, named).status == 403


def test_a_retention_that_is_too_short_is_refused_before_anything_is_written_or_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No store, no tokens, no address."""
    monkeypatch.chdir(tmp_path)
    collected_task(period="month").save("task.toml")
    monkeypatch.setenv("HUBBUB_RETENTION", "30")
    before = contents(tmp_path)
    asked = ("serve", "task.toml", "--store", "sqlite:///s.db", "--port", 0)
    for more in ((), ("--first-tokens", "tokens.json"), ("--processes", 2)):
        assert "retention of 30 days" in refuse(*asked, *more)
    assert contents(tmp_path) == before


def test_the_file_in_deploy_has_all_defaults() -> None:
    """Somebody who adds a setting or changes a default says so there, in the words of --show-settings."""
    text = (DEPLOY / "settings.toml").read_text()
    given = tomllib.loads(text)
    assert list(given) == list(Settings.model_fields)
    assert Settings(**given) == Settings()
    for name, field in Settings.model_fields.items():
        assert f"# {field.description} (HUBBUB_{name.upper()})\n{name} = " in text
