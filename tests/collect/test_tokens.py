"""Tokens that end by themselves, and tokens for some tasks only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from collecting import Collector, collected_task, collecting, sealed_batch, some_reports
from live import ask, bearer

from helpers import refuse, refused, run_cli, succeed
from hubbub.collect import tokens as module
from hubbub.collect.mixer import Mixer
from hubbub.collect.serving import serving
from hubbub.collect.shuffler import Shuffler, create_shuffler_app
from hubbub.collect.store import Store
from hubbub.collect.tokens import COOKIE, Tokens
from hubbub.protocol.sealing import seal
from hubbub.protocol.task import Task

MINE, OTHER = collected_task(), collected_task(size=60)


@pytest.fixture
def two_tasks(store_url: str) -> Iterator[Collector]:
    with collecting(store_url, MINE, OTHER) as collector:
        yield collector


def path_of(task: Task) -> str:
    return f"/v1/tasks/{task.digest.hex()}"


# Expiry


def test_a_token_ends_by_itself(two_tasks: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the second, without anybody refreshing anything; so do the sessions that it opened."""
    known = two_tasks.service.tokens
    token, lasting = known.new("analyst", days=1 / 24), known.new("analyst")
    session, other = known.login(token), known.login(lasting)
    assert session is not None
    assert other is not None
    assert two_tasks.get("/v1/tasks", token).status == 200
    assert ask(f"{two_tasks.address}/", headers={"Cookie": f"{COOKIE}={session}"}).status == 200
    expires = next(fact.expires for fact in known.all() if fact.expires is not None)
    for moment, valid in ((expires - 1.0, True), (float(expires), False)):
        monkeypatch.setattr(module.time, "time", lambda moment=moment: moment)
        assert (known.grant_of(token) is not None) == valid
        assert (known.session_grant(session) is not None) == valid
        assert (known.login(token) is not None) == valid
        assert known.grant_of(lasting) is not None
        assert known.session_grant(other) is not None
    answer = two_tasks.get("/v1/tasks", token)
    assert (answer.status, answer.json["title"]) == (401, "token needed")


# Scope


def test_a_token_for_one_task_uploads_to_no_other(two_tasks: Collector) -> None:
    token = two_tasks.service.tokens.new("upload", tasks=[MINE.digest.hex()])
    for task, status in ((MINE, 200), (OTHER, 404)):
        body = sealed_batch(task, some_reports(task, 3))
        assert two_tasks.upload(body, "a", token, f"{path_of(task)}/reports").status == status
    assert two_tasks.get(path_of(OTHER)).json["reports"] == 0
    shuffling = two_tasks.service.tokens.new("shuffler", tasks=[MINE.digest.hex()])
    public, route = two_tasks.service.keys.public, "/v2/tasks/{}/shuffled"
    for task, status in ((MINE, 200), (OTHER, 404)):
        width, reports = task.mechanism.layout.width, some_reports(task, 3)
        crowd = b"".join(seal(reports[i : i + width], public, task) for i in range(0, 3 * width, width))
        answer = two_tasks.upload(crowd, "b", shuffling, route.format(task.digest.hex()))
        assert answer.status == status


@pytest.mark.parametrize("role", ["analyst", "admin"])
def test_a_token_for_one_task_does_not_know_of_others(two_tasks: Collector, role: module.Role) -> None:
    """A task that it is not for answers as one that is not there, on every route and on the dashboard."""
    token = two_tasks.service.tokens.new(role, tasks=[MINE.digest.hex()])
    for task in (MINE, OTHER):
        two_tasks.upload(sealed_batch(task, some_reports(task, 40)), "a", path=f"{path_of(task)}/reports")
    listed = two_tasks.get("/v1/tasks", token).json["tasks"]
    assert [row["digest"] for row in listed] == [MINE.digest.hex()]
    nowhere = f"/v1/tasks/{'0' * 32}"
    for route in ("", "/estimates?top=3", "/estimates.csv", "/history"):
        assert two_tasks.get(path_of(MINE) + route, token).status == 200
        other = two_tasks.get(path_of(OTHER) + route, token)
        assert (other.status, other.json) == (404, two_tasks.get(nowhere + route, token).json)
    for route in ("/state", "/reports.parquet"):
        assert two_tasks.get(path_of(OTHER) + route, token).status in (403, 404)
    session = {"Cookie": f"{COOKIE}={two_tasks.service.tokens.login(token)}"}
    page = ask(f"{two_tasks.address}/", headers=session).body.decode()
    assert MINE.digest.hex() in page
    assert OTHER.digest.hex() not in page
    assert ask(f"{two_tasks.address}/tasks/{MINE.digest.hex()}", headers=session).status == 200
    assert ask(f"{two_tasks.address}/tasks/{OTHER.digest.hex()}", headers=session).status == 404


def test_a_scope_is_of_digests(store_url: str, opened: Callable[..., Store]) -> None:
    known = Tokens(opened(store_url))
    for wrong in ("", "features", MINE.digest.hex().upper() + "0"):
        with refused("digest"):
            known.new("upload", tasks=[wrong])
    assert known.all() == []


# Several tokens


def test_a_shuffler_takes_several_tokens_of_devices(tmp_path: Path) -> None:
    """So that devices can change theirs one by one."""
    mixing = Shuffler(Mixer(tmp_path / "s.db"), [MINE], "http://127.0.0.1:9", "t", ["old", "new"], 5)
    with serving(create_shuffler_app(mixing)) as url:
        path = f"{url}/v2/tasks/{MINE.digest.hex()}/sealed"
        statuses = {
            token: ask(path, b"x", bearer(token)).status for token in ("old", "new", "", "ol", "old new")
        }
    assert statuses == {"old": 422, "new": 422, "": 401, "ol": 401, "old new": 401}


def test_a_collector_takes_several_shufflers_until_each_is_revoked(two_tasks: Collector) -> None:
    known = two_tasks.service.tokens
    first, second = (known.new("shuffler", label) for label in ("old", "new"))
    path = f"/v2/tasks/{MINE.digest.hex()}/shuffled"
    assert [two_tasks.upload(b"", "x", token, path).status for token in (first, second)] == [422, 422]
    known.revoke(next(fact.id for fact in known.all() if fact.label == "old"))
    assert [two_tasks.upload(b"", "x", token, path).status for token in (first, second)] == [401, 422]


# On the command line


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Store("sqlite:///hubbub.db").close()
    MINE.save("task.toml")
    made = succeed("token", "new", "upload", "--days", 30, "--task", "task.toml")
    assert made["tasks"] == [MINE.digest.hex()]
    day = time.strftime("%Y-%m-%d", time.gmtime(time.time() + 30 * 86400))
    assert made["expires"] <= day
    assert f"until {made['expires']}  for 1 tasks" in run_cli("token", "list").stdout
    assert f"until {made['expires']}" in run_cli("token", "new", "analyst", "--days", 30).stdout
    assert run_cli("token", "new", "upload", "--days", 0).exit_code == 2
    refuse("token", "new", "upload", "--task", "elsewhere.toml")
    (tmp_path / "nonsense.toml").write_text("name = 3")
    refuse("token", "new", "upload", "--task", "nonsense.toml")
    assert len(succeed("token", "list")["tokens"]) == 2
