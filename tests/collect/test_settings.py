"""Settings: defaults, a file, the environment; shown as the file that they can be given as."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from collecting import collected_task, collecting, sealed_batch, some_reports
from deployed import DEPLOY, service
from live import ask, bearer

from helpers import refuse, refused, run_cli, succeed
from hubbub.collect.settings import Settings, as_file, described, load_settings

TASK = collected_task()


def test_later_words_count(tmp_path: Path) -> None:
    """The environment before the file before the default, and it is said which."""
    file = tmp_path / "settings.toml"
    file.write_text('queue = 7\nmemory = 1000\npatience = 2\norigins = ["https://stats.example/"]\n')
    found, sources = load_settings(
        file, {"HUBBUB_QUEUE": "9", "HUBBUB_FOLD_EVERY": "0.5", "HUBBUB_STORE": "x"}
    )
    assert found == Settings(
        queue=9, memory=1000, patience=2.0, fold_every=0.5, origins=("https://stats.example",)
    )
    assert type(found.patience) is float
    assert {name: source for name, source in sources.items() if source != "default"} == {
        "queue": "environment",
        "fold_every": "environment",
        "memory": "file",
        "patience": "file",
        "origins": "file",
    }
    assert load_settings(None, {})[0] == Settings()
    assert load_settings(None, {"HUBBUB_ORIGINS": "https://a.example https://b.example"})[0].origins == (
        "https://a.example",
        "https://b.example",
    )


def test_what_is_shown_can_be_given(tmp_path: Path) -> None:
    """Every setting is in it, with its meaning, its variable and its default."""
    file = tmp_path / "settings.toml"
    changed = Settings(queue=3, header_seconds=0.5, origins=("https://a.example", "https://b.example"))
    for settings in (Settings(), changed):
        text = as_file(settings, dict.fromkeys((each.name for each in fields(Settings)), "default"))
        file.write_text(text)
        assert load_settings(file, {})[0] == settings
    for row in described(Settings(), load_settings(None, {})[1]):
        assert row["words"].endswith("."), row["name"]
        assert f"# {row['words']}\n# {row['variable']}, default " in text
    assert "needs a restart" in text


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("queue = 0", "above 0"),
        ("queue = -1", "above 0"),
        ("queue = 1.5", "whole number"),
        ("queue = true", "whole number"),
        ('queue = "9"', "whole number"),
        ("patience = inf", "above 0"),
        ("patience = nan", "above 0"),
        ('origins = "https://a.example"', "list"),
        ("origins = [1]", "list"),
        ("quene = 9", "'quene'"),
        ("queue = ", "not a file of settings"),
        ("\udcff", "not a file of settings"),
    ],
)
def test_what_is_refused(text: str, part: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with refused("settings.toml", part):
        load_settings(file, {})


@pytest.mark.parametrize("text", ["", "many", "0", "-3", "1e3", "nan"])
def test_what_is_refused_in_the_environment(text: str) -> None:
    with refused("HUBBUB_QUEUE", "whole number"):
        load_settings(None, {"HUBBUB_QUEUE": text})


def test_the_command_shows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HUBBUB_LARGEST_BODY", "1000")
    shown = run_cli("serve", "--show-settings").stdout
    assert "largest_body = 1000" in shown
    assert "this is from the environment" in shown
    Path("settings.toml").write_text(shown)
    monkeypatch.delenv("HUBBUB_LARGEST_BODY")
    rows: list[dict[str, Any]] = succeed("serve", "--show-settings", "--settings", "settings.toml")[
        "settings"
    ]
    by_name = {row["name"]: row for row in rows}
    assert set(by_name) == {each.name for each in fields(Settings)}
    assert (by_name["largest_body"]["value"], by_name["largest_body"]["source"]) == (1000, "file")
    assert "quene" in refuse("serve", "--show-settings", "--settings", _written("bad.toml", "quene = 1"))
    assert not list(tmp_path.glob("hubbub*"))


def _written(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def test_the_services_obey_them(tmp_path: Path) -> None:
    """By the commands of deploy/, with the settings of the environment."""
    (tmp_path / "tasks").mkdir()
    TASK.save(tmp_path / "tasks" / "task.toml")
    store = f"sqlite:///{tmp_path}/hubbub.db"
    environment = {"HUBBUB_STORE": store, "HUBBUB_MOST_REPORTS": "5"}
    with service("systemd collector", tmp_path, {}, **environment) as address:
        token = json.loads((tmp_path / "var" / "first-tokens.json").read_text())["upload"]
        path = f"{address}/v1/tasks/{TASK.digest.hex()}/reports"
        statuses = [
            ask(
                path,
                sealed_batch(TASK, some_reports(TASK, count)),
                {**bearer(token), "Hubbub-Batch": f"b{count}"},
            ).status
            for count in (5, 6)
        ]
    assert statuses == [200, 413]


def test_forms_are_taken_from_the_origins_that_are_named(tmp_path: Path) -> None:
    named = {"Origin": "https://stats.example"}
    with collecting(f"sqlite:///{tmp_path}/s.db", origins=("https://stats.example",)) as collector:
        form = f"token={collector.token}".encode()
        for site in ({}, {"Sec-Fetch-Site": "cross-site"}):
            assert ask(f"{collector.address}/login", form, {**named, **site}).status == 303
            other = {"Origin": "https://stats.example.org", **site}
            assert ask(f"{collector.address}/login", form, other).status == 403
    with collecting(f"sqlite:///{tmp_path}/s.db") as collector:
        form = f"token={collector.token}".encode()
        assert ask(f"{collector.address}/login", form, named).status == 403


def test_the_file_in_deploy_has_all_defaults() -> None:
    """Somebody who changes a default changes it there: hubbub serve --show-settings > deploy/settings.toml."""
    text = (DEPLOY / "settings.toml").read_text()
    assert text == as_file(*load_settings(None, {}))
