"""Pages of other origins, and senders without a token: what is open to them, and that nothing else is."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from collecting import Collector, collected_task, collecting, sealed_batch, some_reports
from live import Answer, ask, bearer, keyed_mixer, opaque_items

from helpers import refused
from hubbub.collect import strangers
from hubbub.collect.problems import Problem
from hubbub.collect.serving import serving
from hubbub.collect.settings import Settings, load_settings
from hubbub.collect.shuffler import Shuffler, create_shuffler_app
from hubbub.collect.strangers import Strangers

TASK = collected_task()
PAGE = "https://app.example"
OPEN_TO_READ = ("/v1/key", f"/v1/tasks/{TASK.digest.hex()}/device")
#: Too long to be answered before the web framework sees it.
MANY = 30_000


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    url = f"sqlite:///{tmp_path_factory.mktemp('origins') / 's.db'}"
    with collecting(url, report_origins=(PAGE,)) as made:
        yield made


def preflight(url: str, method: str, origin: str = PAGE) -> Answer:
    asks = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": "hubbub-batch"}
    return ask(url, headers={"Origin": origin, **asks}, method="OPTIONS")


def opened(answer: Answer) -> str | None:
    """The origin that may read an answer."""
    return answer.headers.get("access-control-allow-origin")


def test_browsers_are_told_which_pages_may_send(collector: Collector) -> None:
    for path, method in ((f"{collector.path}/reports", "POST"), *((path, "GET") for path in OPEN_TO_READ)):
        answer = preflight(collector.address + path, method)
        assert (answer.status, opened(answer), answer.body) == (204, PAGE, b"")
        assert answer.headers["access-control-allow-methods"] == method
        allowed = answer.headers["access-control-allow-headers"].lower().split(", ")
        assert {"hubbub-batch", "hubbub-labels", "hubbub-period"} <= set(allowed)
        assert int(answer.headers["access-control-max-age"]) >= 600
        assert "access-control-allow-credentials" not in answer.headers
        for stranger in ("https://app.example.org", "http://app.example", "null", "https://APP.example", ""):
            answer = preflight(collector.address + path, method, stranger)
            assert (answer.status, opened(answer)) == (403, None)


def test_uploads_and_refusals_can_be_read_by_these_pages_only(collector: Collector) -> None:
    for count in (3, MANY):  # the short way and the long one
        body = sealed_batch(TASK, some_reports(TASK, count))
        url = f"{collector.address}{collector.path}/reports"
        for origin, seen in ((PAGE, PAGE), ("https://other.example", None)):
            headers = {**bearer(collector.token), "Hubbub-Batch": secrets.token_hex(8), "Origin": origin}
            for given, status in ((body, 200), (body[:-1], 422)):
                answer = ask(url, given, {**headers, "Hubbub-Batch": secrets.token_hex(8)})
                assert (answer.status, opened(answer)) == (status, seen)
                assert answer.headers["vary"] == "Origin"
            answer = ask(url, body, {**headers, "Authorization": "Bearer wrong"})
            assert (answer.status, opened(answer)) == (401, seen)
    assert "Retry-After" in ask(url, b"", {"Origin": PAGE}).headers["access-control-expose-headers"]


def test_tasks_and_keys_can_be_read_and_nothing_else(collector: Collector) -> None:
    for path in OPEN_TO_READ:
        for origin, seen in ((PAGE, PAGE), ("https://other.example", None)):
            answer = ask(collector.address + path, headers={"Origin": origin})
            assert (answer.status, opened(answer)) == (200, seen)
            assert "origin" in answer.headers["vary"].lower()
    closed = ("", "/estimates", "/estimates.csv", "/history", "/state", "/reports.parquet")
    paths = [collector.path + part for part in closed]
    for path in (
        *paths,
        "/v1/tasks",
        "/",
        "/login",
        "/metrics",
        "/readyz",
        "/openapi.json",
        collector.shuffled,
    ):
        answer = ask(collector.address + path, headers={**bearer(collector.token), "Origin": PAGE})
        assert opened(answer) is None
        assert opened(preflight(collector.address + path, "GET")) is None
    form = ask(f"{collector.address}/login", f"token={collector.token}".encode(), {"Origin": PAGE})
    assert form.status == 403


def test_nothing_is_open_unless_it_is_named(tmp_path: Path) -> None:
    with collecting(f"sqlite:///{tmp_path}/s.db") as collector:
        for path in (f"{collector.path}/reports", *OPEN_TO_READ):
            assert preflight(collector.address + path, "POST").status == 403
            answer = ask(collector.address + path, headers={"Origin": PAGE})
            assert not {name for name in answer.headers if name.startswith("access-control")}
        url = f"{collector.address}{collector.path}/reports"
        body = sealed_batch(TASK, some_reports(TASK, 3))
        assert ask(url, body, {"Hubbub-Batch": "b"}).status == 401
        answer = ask(url, body, {"Hubbub-Batch": "b", "Origin": PAGE, **bearer(collector.token)})
        assert (answer.status, opened(answer)) == (200, None)


def test_origins_are_written_as_browsers_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    good = "https://app.example http://localhost:8080 https://[::1]:99 http://127.0.0.1"
    monkeypatch.setenv("HUBBUB_REPORT_ORIGINS", good)
    assert load_settings(None)[0].report_origins == tuple(good.split())
    for wrong in ("*", "null", "app.example", "https://app.example/", "https://App.example", "file:///"):
        monkeypatch.setenv("HUBBUB_REPORT_ORIGINS", wrong)
        with refused("HUBBUB_REPORT_ORIGINS"):
            load_settings(None)


# Without a token


def test_without_a_token_an_address_has_so_many_reports_a_minute(tmp_path: Path) -> None:
    with collecting(f"sqlite:///{tmp_path}/s.db", public_reports=10) as collector:
        url = f"{collector.address}{collector.path}/reports"

        def send(count: int, **headers: str) -> Answer:
            body = sealed_batch(TASK, some_reports(TASK, count))
            return ask(url, body, {"Hubbub-Batch": secrets.token_hex(8), **headers})

        assert [send(count).status for count in (4, 4, 3, 2, 1)] == [200, 200, 429, 200, 429]
        later = send(1)
        assert (later.status, "batch" in later.json) == (429, True)
        assert 1 <= int(later.headers["retry-after"]) <= 60
        assert collector.reports == 10
        # A proxy on this machine is believed when it says who sends.
        assert send(10, **{"X-Forwarded-For": "203.0.113.7"}).status == 200
        assert send(1, **{"X-Forwarded-For": "203.0.113.7"}).status == 429
        # Those with tokens are not concerned, and those whose tokens are wrong are not strangers.
        assert send(50, **bearer(collector.token)).status == 200
        assert send(1, Authorization="Bearer wrong").status == 401
        assert send(1, **bearer(collector.service.tokens.new("analyst"))).status == 403
        # Crowds, and whatever is read, still take a token.
        assert ask(collector.address + collector.shuffled, b"x", {"Hubbub-Batch": "c"}).status == 401
        assert ask(f"{collector.address}{collector.path}/estimates").status == 401


def test_a_public_batch_is_no_larger_than_a_minute_s_worth(tmp_path: Path) -> None:
    """It is told 413, so that its sender sends halves; and a batch that is here already is never told so."""
    url, body = f"sqlite:///{tmp_path}/s.db", sealed_batch(TASK, some_reports(TASK, 20))
    with collecting(url, public_reports=20) as collector:
        path = f"{collector.address}{collector.path}/reports"
        assert ask(path, body, {"Hubbub-Batch": "b"}).status == 200
    with collecting(url, public_reports=19) as collector:
        path = f"{collector.address}{collector.path}/reports"
        fresh = ask(path, body, {"Hubbub-Batch": "c"})
        assert (fresh.status, fresh.json["batch"]) == (413, "c")
        known = ask(path, body, {"Hubbub-Batch": "b"})
        assert (known.status, known.json["repeated"]) == (200, True)
        half = sealed_batch(TASK, some_reports(TASK, 19))
        assert ask(path, half, {"Hubbub-Batch": "d"}).status == 200
        assert collector.reports == 39


def test_a_shuffler_is_open_in_the_same_way(tmp_path: Path) -> None:
    settings = Settings(report_origins=(PAGE,), public_reports=5)
    mixing = Shuffler(keyed_mixer(tmp_path / "m.db"), [TASK], "http://127.0.0.1:9", "s", "up", 100)
    with serving(create_shuffler_app(mixing, settings)) as address:
        url = f"{address}/v2/tasks/{TASK.digest.hex()}/sealed"
        assert opened(preflight(url, "POST")) == PAGE
        assert preflight(url, "POST", "https://other.example").status == 403
        assert opened(preflight(f"{address}/metrics", "GET")) is None

        def send(count: int, **headers: str) -> Answer:
            named = {"Hubbub-Batch": secrets.token_hex(8), "Origin": PAGE, **headers}
            return ask(url, b"".join(opaque_items(TASK, count)), named)

        answers = [send(count) for count in (3, 6, 3, 2)]
        assert [answer.status for answer in answers] == [200, 413, 429, 200]
        assert {opened(answer) for answer in answers} == {PAGE}
        assert send(9, **bearer("up")).status == 200
        assert send(1, **bearer("wrong")).status == 401


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_what_a_browser_sends_without_asking_is_not_taken(tmp_path: Path, version: str) -> None:
    """A form or a "no-cors" request of any page comes without a header of its own, and no browser asks before it."""
    settings = Settings(report_origins=(PAGE,), public_reports=1000)
    simple = {"Origin": "https://other.example", "Content-Type": "text/plain"}
    mixing = Shuffler(keyed_mixer(tmp_path / "m.db"), [TASK], "http://127.0.0.1:9", "s", "up", 100)
    with serving(create_shuffler_app(mixing, settings)) as address:
        url = f"{address}/{version}/tasks/{TASK.digest.hex()}/sealed"
        assert ask(url, b"".join(opaque_items(TASK, 3)), simple).status == 400
        assert mixing.mixer.waiting(TASK) == 0
    with collecting(
        f"sqlite:///{tmp_path}/s.db", TASK, report_origins=(PAGE,), public_reports=1000
    ) as collector:
        url = f"{collector.address}{collector.path}/reports"
        assert ask(url, sealed_batch(TASK, some_reports(TASK, 3)), simple).status == 400
        assert collector.reports == 0


def test_addresses_are_counted_apart_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "_MINUTE", 0.05)
    monkeypatch.setattr(strangers, "_MOST", 4)

    async def run() -> None:
        door = Strangers(2)
        # One household of IPv6, one IPv4 address in two spellings, a socket without an address.
        for one, same in (
            ("2001:db8::1", "2001:db8::2"),
            ("192.0.2.1", "::ffff:192.0.2.1"),
            ("", "somewhere"),
        ):
            door.count(one, 1)
            door.count(same, 1)
            for each in (one, same):
                with pytest.raises(Problem, match="2 reports a minute"):
                    door.count(each, 1)
        door.count("2001:db8:0:1::1", 2)
        with pytest.raises(Problem):  # no room for a fifth
            door.count("192.0.2.2", 1)
        await asyncio.sleep(0.1)
        door.count("192.0.2.2", 2)
        door.count("192.0.2.1", 2)

    asyncio.run(run())
