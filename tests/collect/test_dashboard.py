"""The dashboard in a real browser: headless Chromium, driven by Playwright.

HUBBUB_SCREENSHOTS=1 also writes the pictures of the documentation to docs/images.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import numpy as np
import pytest
from browsing import chromium
from collecting import SALT, Collector, collecting, sealed_batch
from live import ask

from hubbub.collect.dashboard.pages import FILTERS
from hubbub.collect.dashboard.scales import Scale, Unit
from hubbub.collect.showcase import demo_task
from hubbub.collect.store import Batch
from hubbub.device.client import encode_record, privatize
from hubbub.model.record import Entries
from hubbub.primitives.coins import InsecureCoins, SimulatedSeeds
from hubbub.primitives.text import cell, visible
from hubbub.protocol.sealing import seal
from hubbub.protocol.task import Task
from hubbub.simulation.populations import zipf_population

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
EVIL = (
    "<script>alert(1)</script>",
    "</title><img src=x onerror=alert(1)>",
    "\"double\" and 'single' & &amp;",
    "🦜 parrot 🎉",
    "w" * 200,
    "שלום עולם",
    "مرحبا (بالعالم)",
    "\u202eright to left",
    "{{ 7 * 7 }}",
    "' onmouseover='alert(1)",
)


def task(name: str, keys: dict[str, Any] | None = None, mechanism: str = "collision", **more: Any) -> Task:
    universe = keys or {"kind": "closed", "vocabulary": [*EVIL, *(f"key {i}" for i in range(30))]}
    law = {"name": mechanism, "epsilon": 3.0, "max_entries": 4}
    return Task.parse({"name": name, "keys": {**universe, "salt": SALT}, "mechanism": law, **more})


SETS = task("Pages <b>seen</b>")
VALUES = task("Ratings", mechanism="coco", low=1, high=5)
OPEN = task("Any word", {"kind": "folded", "bits": 16}, precision="minute")
FEW = task("Withheld", minimum_reports=300)
DAILY = task("Daily", period="day", reports_per_period=2)
#: Nobody has any of 500 keys; and everybody has eight of 40 where four count.
HOPELESS = task("Hopeless", {"kind": "closed", "size": 500})
LONG = task("Long records", {"kind": "closed", "size": 40, "count_lengths": True})
#: Errors below a percent, which are written with two decimals.
SHARP = Task.parse(
    {
        "name": "Sharp",
        "keys": {"kind": "closed", "vocabulary": [f"key {i}" for i in range(300)], "salt": SALT},
        "mechanism": {"name": "collision", "epsilon": 10.0, "max_entries": 4},
    }
)
#: Nobody has listed these keys; the last is longer than the four bytes that count.
FOUND = ("<b>", "\u202ez", "help", "hello")
TREE = Task.parse(
    {
        "name": "To be found",
        "keys": {
            "kind": "tree",
            "bits": 16,
            "tree": {"longest": 4, "levels": [2, 2], "shares": [1, 1, 1]},
            "salt": SALT,
        },
        "mechanism": {"name": "collision", "epsilon": 6.0, "max_entries": 1},
    }
)
TASKS = (SETS, VALUES, OPEN, FEW, DAILY, HOPELESS, LONG, SHARP, TREE)


def crowd_reports(chosen: Task, people: int, seed: int) -> bytes:
    """Reports of a made-up crowd (seeded, hence insecure)."""
    signed = chosen.scale.kind == "signed"
    entries = zipf_population(people, chosen.keys.count, seed, entries=3.0, signed=signed).entries
    return privatize(chosen, entries, InsecureCoins(seed), SimulatedSeeds(seed))[0].tobytes()


def open_reports(people: int, seed: int) -> bytes:
    """Everybody has apple, every other one pear."""
    return named_reports(OPEN, [{"apple", "pear"} if i % 2 else {"apple"} for i in range(people)], seed)


def named_reports(chosen: Task, held: Sequence[set[str]], seed: int) -> bytes:
    """Reports of people who hold these keys (seeded, hence insecure)."""
    records = [encode_record(chosen, keys)[0] for keys in held]
    lengths = [len(record.ids) for record in records]
    entries = Entries(
        np.concatenate([record.ids for record in records]),
        np.concatenate([record.values for record in records]),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    )
    return privatize(chosen, entries, InsecureCoins(seed), SimulatedSeeds(seed))[0].tobytes()


def same_records(chosen: Task, people: int, keys: int) -> bytes:
    """Everybody has the first few keys."""
    ids = np.tile(np.arange(keys, dtype=np.uint64), people)
    offsets = np.arange(people + 1, dtype=np.int64) * keys
    entries = Entries(ids, np.full(len(ids), 1 << 30, dtype=np.int64), offsets)
    return privatize(chosen, entries, InsecureCoins(7), SimulatedSeeds(8))[0].tobytes()


class Board:
    """A collector with tasks, and somebody who may read."""

    def __init__(self, collector: Collector) -> None:
        self.collector, self.url = collector, collector.address
        self.token = collector.service.tokens.new("analyst")
        self._batches = iter(range(10**6))

    def page(self, chosen: Task, query: str = "") -> str:
        return f"{self.url}/tasks/{chosen.digest.hex()}{query}"

    def send(self, chosen: Task, reports: bytes) -> None:
        path = f"/v1/tasks/{chosen.digest.hex()}/reports"
        body = sealed_batch(chosen, reports)
        assert self.collector.upload(body, f"b{next(self._batches)}", path=path).status in (200, 422)

    def estimates(self, chosen: Task, query: str = "") -> dict[str, Any]:
        """What the service says, with keys as pages show them."""
        found: dict[str, Any] = self.collector.get(f"/v1/tasks/{chosen.digest.hex()}/estimates{query}").json
        for row in found["estimates"]:
            row["key"] = visible(row["key"])
        return found


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    url = f"sqlite:///{tmp_path_factory.mktemp('board') / 'store.db'}"
    with collecting(url, *TASKS) as collector:
        made = Board(collector)
        made.send(SETS, crowd_reports(SETS, 4000, 1))
        made.send(VALUES, crowd_reports(VALUES, 4000, 2))
        made.send(OPEN, open_reports(1000, 3))
        made.send(FEW, crowd_reports(FEW, 100, 4))
        made.send(HOPELESS, same_records(HOPELESS, 300, 0))
        made.send(LONG, same_records(LONG, 4000, 8))
        made.send(SHARP, crowd_reports(SHARP, 8000, 5))
        made.send(TREE, named_reports(TREE, [{FOUND[i % 4]} for i in range(4000)], 9))
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


class Reader:
    """Somebody at a browser; whatever the browser complains about is an error."""

    def __init__(self, browser: Browser, board: Board, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.context.set_default_timeout(60_000)
        self.complaints: list[str] = []
        self.board = board
        self.page: Page = self.context.new_page()
        self.page.on("console", lambda said: self.complaints.append(said.text))
        self.page.on("pageerror", lambda problem: self.complaints.append(str(problem)))
        self.page.on("dialog", lambda dialog: self._alarm(dialog))

    def _alarm(self, dialog: Any) -> None:
        self.complaints.append(f"a script has run: {dialog.message}")
        dialog.dismiss()

    def log_in(self) -> Page:
        self.page.goto(f"{self.board.url}/login#{self.board.token}")
        self.page.wait_for_url(f"{self.board.url}/")
        return self.page

    def open(self, chosen: Task, query: str = "") -> Page:
        self.page.goto(self.board.page(chosen, query))
        return self.page


@pytest.fixture(scope="module")
def session(browser: Browser, board: Board) -> Any:
    """What a browser remembers once somebody has logged in."""
    reader = Reader(browser, board)
    reader.log_in()
    remembered = reader.context.storage_state()
    reader.context.close()
    return remembered


@pytest.fixture
def visit(browser: Browser, board: Board, session: Any, request: pytest.FixtureRequest) -> Iterator[Reader]:
    """A reader who is logged in; options of the browser may come as a parameter."""
    reader = Reader(browser, board, storage_state=session, **getattr(request, "param", {}))
    yield reader
    reader.context.close()
    assert reader.complaints == []


def wait_until(holds: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


# Numbers


def test_ticks_are_round_and_cover_the_axis() -> None:
    for low, high, marks in (
        (0.0, 0.41, [0.0, 0.1, 0.2, 0.3, 0.4]),
        (-0.85, 0.52, [-0.5, 0.0, 0.5]),
        (1.0, 5.0, [1.0, 2.0, 3.0, 4.0, 5.0]),
        (-3e-7, 0.0, [-3e-7, -2e-7, -1e-7, 0.0]),
        (0.0, 12345.0, [0.0, 2500.0, 5000.0, 7500.0, 10000.0]),
    ):
        assert Scale(low, high).ticks() == pytest.approx(marks)
        assert all(0 <= Scale(low, high).place(mark) <= 100 for mark in marks)


def test_numbers_have_the_digits_that_their_error_leaves() -> None:
    share = Unit(percent=True).for_errors(np.array([0.0123, 0.0125, np.inf]))
    assert (share.text(0.34567), share.text(-0.0004), share.text(-0.0123)) == ("34.6%", "0.0%", "−1.2%")
    plain = Unit(percent=False).for_errors(np.array([17.0]))
    assert plain.text(1234.5) == "1234"
    assert Unit(percent=False).for_errors(np.array([np.inf])).text(2.5) == "2.5"
    assert Unit(percent=True).for_steps(0.025).text(0.05) == "5.0%"
    assert Unit(percent=False).for_steps(0.25).text(-0.25) == "−0.25"


def test_small_numbers_are_written_as_powers() -> None:
    written = {1e-6: "10⁻⁶", 2.5e-7: "2.5·10⁻⁷", 1e-10: "10⁻¹⁰", 0.01: "0.01"}
    assert {value: FILTERS["power"](value) for value in written} == written


# Logging in and out


def test_login_and_logout(browser: Browser, board: Board) -> None:
    reader = Reader(browser, board)
    page = reader.page
    page.goto(board.page(SETS))
    assert page.url == f"{board.url}/login"
    for wrong in ("hub_analyst_wrong", board.collector.service.tokens.new("upload")):
        page.get_by_label("Token").fill(wrong)
        with page.expect_response("**/login") as answer:
            page.get_by_role("button", name="Log in").click()
        assert answer.value.status == 401
        assert "not valid here" in page.get_by_role("alert").inner_text()
        assert wrong not in page.content()
    page.get_by_label("Token").fill(f" {board.token} ")
    page.get_by_label("Token").press("Enter")
    page.wait_for_url(f"{board.url}/")
    assert page.get_by_role("heading").first.inner_text() == "Tasks"
    (cookie,) = reader.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert board.token not in page.content()
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url(f"{board.url}/login")
    assert reader.context.cookies() == []
    page.goto(f"{board.url}/")
    assert page.url == f"{board.url}/login"
    session = {"Cookie": f"{cookie['name']}={cookie['value']}"}
    assert ask(f"{board.url}/", headers=session).status == 303, "the session outlives the logout"
    reader.context.close()
    assert all("401" in complaint for complaint in reader.complaints)


def test_a_token_in_the_fragment_logs_in_and_disappears(browser: Browser, board: Board) -> None:
    reader = Reader(browser, board)
    assert reader.log_in().url == f"{board.url}/"
    reader.page.go_back()
    assert board.token not in reader.page.url
    reader.context.close()
    assert reader.complaints == []


def test_a_token_pasted_while_the_login_page_is_open_logs_in(browser: Browser, board: Board) -> None:
    """The browser does not load the page again for that."""
    reader = Reader(browser, board)
    page = reader.page
    page.goto(f"{board.url}/login")
    page.evaluate("(token) => { location.hash = token; }", board.token)
    page.wait_for_url(f"{board.url}/")
    page.go_back()
    assert board.token not in page.url
    reader.context.close()
    assert reader.complaints == []


def test_forms_of_other_sites_are_refused(board: Board) -> None:
    form = f"token={board.token}".encode()
    host = board.url.removeprefix("http://")
    for headers, status in (
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": board.url}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({}, 403),
        ({"Origin": f"http://{host}"}, 303),
        ({"Sec-Fetch-Site": "same-origin"}, 303),
    ):
        for path in ("/login", "/logout"):
            assert ask(board.url + path, form, headers).status == status
    assert ask(f"{board.url}/login", b"x" * 5000, {"Origin": board.url}).status == 413
    for body in (b"", b"token", b"token=%ff%00&token=%", b"a=1&" * 1000 + b"token=x", b"\xff" * 100):
        assert ask(f"{board.url}/login", body, {"Origin": board.url}).status == 401


def test_pages_need_a_role_that_reads(board: Board) -> None:
    for role, status in ((None, 303), ("upload", 303), ("shuffler", 303), ("analyst", 200), ("admin", 200)):
        token = board.collector.service.tokens.new(role) if role else ""
        for path in ("/", f"/tasks/{SETS.digest.hex()}", f"/tasks/{SETS.digest.hex()}?part=1"):
            answer = ask(board.url + path, headers={"Authorization": f"Bearer {token}"})
            assert answer.status == status
            assert (answer.headers.get("location") == "/login") == (status == 303)
            assert answer.headers["cache-control"] == "no-store"
    assert ask(f"{board.url}/static/hubbub.css").status == 200
    for name in ("../pages.py", "nothing.css", "%2e%2e/pages.py"):
        assert ask(f"{board.url}/static/{name}").status == 404


# Keys


def drawn_rows(page: Page, part: str) -> list[dict[str, Any]]:
    """Key, place of dot and whisker in pixels, greyness and numbers of every row, as they are on the screen."""
    script = """(rows) => rows.map((row) => {
        const middle = (shape) => { const box = shape.getBoundingClientRect(); return [box.left, box.right]; };
        const cells = (name) => row.querySelector("td." + name).innerText.trim();
        const colour = getComputedStyle(row.querySelector("circle")).fill;
        return {
            key: row.querySelector(".key").textContent, dot: middle(row.querySelector("circle")),
            whisker: middle(row.querySelector(".whisker")), colour,
            value: cells("value"), error: cells("error"), interval: cells("interval"),
        };
    })"""
    found: list[dict[str, Any]] = page.locator(f"#{part} tbody tr").evaluate_all(script)
    return found


def tick_places(page: Page, part: str) -> tuple[list[float], list[float]]:
    """Numbers on the axis, and where they are in pixels."""
    marks = page.locator(f"#{part} .axis text")
    numbers = [float(text.rstrip("%").replace("−", "-")) for text in marks.all_text_contents()]
    middle = "(box) => (box.left + box.right) / 2"
    boxes = marks.evaluate_all(f"(all) => all.map((mark) => ({middle})(mark.getBoundingClientRect()))")
    return numbers, boxes


def test_top_keys_have_dots_and_whiskers_where_the_numbers_are(visit: Reader) -> None:
    """Dots and whiskers lie within a pixel and a half of estimate and interval, read off the drawn axis."""
    page = visit.open(SETS)
    about = visit.board.estimates(SETS, "?top=20")
    truth = {row["key"]: row for row in about["estimates"]}
    rows = drawn_rows(page, "keys")
    assert [row["key"] for row in rows] == sorted(truth, key=lambda key: -truth[key]["value"])
    numbers, places = tick_places(page, "keys")
    slope, start = np.polyfit(numbers, places, 1)
    for row in rows:
        want = truth[row["key"]]
        assert sum(row["dot"]) / 2 == pytest.approx(start + slope * 100 * want["value"], abs=1.5)
        left, right = start + slope * 100 * want["low"], start + slope * 100 * want["high"]
        assert row["whisker"] == pytest.approx([left, right], abs=1.5)
        decimals = len(row["value"].rstrip("%").partition(".")[2])
        assert row["value"] == f"{100 * want['value']:.{decimals}f}%".replace("-", "−")
        assert row["error"] == f"± {100 * want['error']:.{decimals}f}%"
        assert f"{100 * want['high']:.{decimals}f}%" in row["interval"]


def test_keys_below_the_noise_floor_are_grey_and_said_to_be(visit: Reader) -> None:
    """Grey exactly where a key does not stand out among all 40 (Bonferroni), and some are on either side."""
    page = visit.open(SETS)
    needed = NormalDist().inv_cdf(1 - 0.05 / 2 / SETS.keys.count)
    noise = {
        row["key"]
        for row in visit.board.estimates(SETS, "?top=20")["estimates"]
        if row["value"] < needed * row["error"]
    }
    assert 0 < len(noise) < 20
    rows = drawn_rows(page, "keys")
    colours = {row["colour"] for row in rows if row["key"] in noise}
    assert len(colours) == 1
    assert {row["key"] for row in rows if row["colour"] in colours} == noise
    words = page.locator("#keys .reading").first.inner_text()
    assert f"{len(noise)} of these keys are grey: below the noise floor." in words
    assert f"{visit.board.estimates(SETS)['reports']:,} reports" in words
    spoken = page.locator("#keys tbody th").filter(has_text="below the noise floor")
    assert spoken.count() == len(noise)


def test_where_nothing_stands_out_that_is_what_the_page_says_first(visit: Reader) -> None:
    """Before any number, with what would have stood out; no key is listed, and one can still be looked up."""
    page = visit.open(HOPELESS)
    said = visit.board.estimates(HOPELESS)
    assert said["findings"]["count"] == 0
    (warning,) = said["warnings"]
    assert "By the plan, a share of" in warning
    shown = page.locator("main > *").nth(1)
    assert shown.get_attribute("id") == "warnings"
    assert shown.inner_text() == warning
    assert warning.startswith(
        "Nothing stands out: none of 500 keys can be told from noise. With 300 reports, "
    )
    assert page.locator("#keys tbody tr").count() == 0
    assert "Nothing stands out." in page.locator("#keys").inner_text()
    page = visit.open(HOPELESS, "?key=7")
    assert len(drawn_rows(page, "found")) == 1
    assert not visit.open(SETS).locator("#warnings").is_visible()


def test_what_is_lost_to_long_records_is_said_first(visit: Reader) -> None:
    """All records are too long, three of eight entries stay: 62.5% is lost, and the page says so, as does the file."""
    page = visit.open(LONG)
    said = visit.board.estimates(LONG)
    lost = said["truncation"]
    assert abs(lost["lost"] - 5 / 8) < 6 * lost["lost_error"] < 0.25
    (warning,) = said["warnings"]
    assert "of all records were longer than 4 entries" in warning
    assert "By the plan" in warning
    assert page.locator("#warnings").inner_text() == warning
    assert page.locator("#keys tbody tr").count() == 20
    path = f"/v1/tasks/{LONG.digest.hex()}/estimates.csv"
    rows = list(csv.DictReader(io.StringIO(visit.board.collector.get(path).body.decode())))
    assert rows[0]["note"].startswith(warning)
    assert rows[-1]["dropped"] == ""
    assert float(rows[-1]["long_records"]) == pytest.approx(lost["longer"])
    fixed = visit.board.estimates(LONG, "?correct=true&keys=0")["estimates"][0]
    assert fixed["low"] < 1 < fixed["high"]
    assert visit.board.estimates(LONG, "?keys=0")["estimates"][0]["high"] < 0.6


def test_several_quantities(visit: Reader) -> None:
    page = visit.open(VALUES)
    tabs = page.get_by_role("navigation", name="What is estimated")
    assert tabs.get_by_role("link").all_inner_texts() == ["Mean", "Share of users", "Mean among holders"]
    tabs.get_by_role("link", name="Mean among holders").click()
    page.wait_for_url("**quantity=conditional")
    assert "among the users who have the key" in page.locator("#keys .card-head").inner_text()
    want = {row["key"]: row for row in visit.board.estimates(VALUES, "?quantity=conditional")["estimates"]}
    rows = drawn_rows(page, "keys")
    assert {row["key"] for row in rows} == set(want)
    for row in rows:
        assert float(row["value"]) == pytest.approx(want[row["key"]]["value"], abs=0.06)
        assert (row["error"] == "± ?") == (want[row["key"]]["error"] is None)


def test_look_up(visit: Reader) -> None:
    page = visit.open(SETS)
    for key in ("key 7", "key 29"):
        page.get_by_label("Look up a key").fill(key)
        page.get_by_role("button", name="Look up").click()
        page.wait_for_url(f"**{key[-2:].strip()}")
    rows = drawn_rows(page, "found")
    assert [row["key"] for row in rows] == ["key 7", "key 29"]
    want = visit.board.estimates(SETS, "?keys=key%207")["estimates"][0]["value"]
    assert float(rows[0]["value"].rstrip("%").replace("−", "-")) == pytest.approx(100 * want, abs=0.06)
    page.get_by_role("link", name="Remove key 7").click()
    wait_until(lambda: [row["key"] for row in drawn_rows(page, "found")] == ["key 29"])
    page.get_by_label("Look up a key").fill("<i>nowhere</i>")
    page.get_by_label("Look up a key").press("Enter")
    alert = page.get_by_role("alert")
    assert "'<i>nowhere</i>' is not in the task's vocabulary of 40 keys" in alert.inner_text()


def test_a_mistyped_look_up_is_said_and_not_kept(visit: Reader) -> None:
    """Neither in the address, nor in what is polled, nor in links and later look-ups; it can be mended in the field."""
    page = visit.open(SETS, "?key=key%207")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    field = page.get_by_label("Look up a key")
    field.fill("kee 8")
    field.press("Enter")
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert "'kee 8' is not in the task's vocabulary" in alert.inner_text()
    assert field.input_value() == "kee 8"
    assert page.url == visit.board.page(SETS, "?key=key+7")
    first = len(asked)
    with page.expect_request(lambda request: "part=1" in request.url):
        pass
    assert [url for url in asked[first:] if "kee" in url] == []
    assert page.locator("a[href*=kee], input[type=hidden][value*=kee]").count() == 0
    field.fill("key 8")
    field.press("Enter")
    wait_until(lambda: [row["key"] for row in drawn_rows(page, "found")] == ["key 7", "key 8"])
    assert "kee" not in page.url
    assert page.get_by_role("alert").count() == 0


def test_more_keys_sorted_and_with_other_intervals(visit: Reader) -> None:
    """Links choose them, all choices stay in the address together, and the numbers are those of the service."""
    page = visit.open(SHARP)
    choices = page.get_by_role("navigation", name="What is listed")
    assert len(drawn_rows(page, "keys")) == 20
    assert [choices.get_by_role("link", name=name, exact=True).count() for name in ("20", "50", "200")] == [
        1
    ] * 3
    choices.get_by_role("link", name="50", exact=True).click()
    wait_until(lambda: page.locator("#keys tbody tr").count() == 50)
    assert "Top 50 of 300 keys" in page.locator("#keys-title").inner_text()
    rows = drawn_rows(page, "keys")
    numbers = [float(row["value"].rstrip("%").replace("−", "-")) for row in rows]
    assert numbers == sorted(numbers, reverse=True)
    choices.get_by_role("link", name="name", exact=True).click()
    wait_until(lambda: "order=name" in page.url)
    by_name = drawn_rows(page, "keys")
    assert [row["key"] for row in by_name] == sorted(row["key"] for row in rows)
    choices.get_by_role("link", name="99%", exact=True).click()
    wait_until(lambda: "level=99" in page.url)
    assert "show=50" in page.url
    assert "order=name" in page.url
    assert "99% intervals" in page.locator("#keys .card-head").inner_text()
    want = {row["key"]: row for row in visit.board.estimates(SHARP, "?top=50&level=0.99")["estimates"]}
    for row in drawn_rows(page, "keys"):
        assert f"to {100 * want[row['key']]['high']:.2f}%".replace("-", "−") in row["interval"]
    page.get_by_label("Look up a key").fill("key 299")
    page.get_by_label("Look up a key").press("Enter")
    wait_until(lambda: "key=key+299" in page.url)
    chosen = set(page.url.partition("?")[2].split("&"))
    assert chosen == {"show=50", "order=name", "level=99", "key=key+299"}
    odd = visit.open(SHARP, "?show=1000000&order=colour&level=banana")
    assert len(drawn_rows(odd, "keys")) == 20
    assert odd.url == visit.board.page(SHARP)


@pytest.mark.parametrize(
    "visit",
    [{"viewport": {"width": width, "height": 900}} for width in (1280, 1024, 700)],
    indirect=True,
    ids=["wide", "narrow", "one column"],
)
def test_columns_of_numbers_do_not_run_into_each_other(visit: Reader) -> None:
    """With two decimals, in both tables: the text of every cell stays inside it, and cells follow each other."""
    page = visit.open(SHARP, "?key=key%200&key=key%201&level=99")
    assert re.fullmatch(r"[\d.]+\.\d\d%", drawn_rows(page, "keys")[0]["value"])
    script = """(rows) => rows.map((row) => ["value", "error", "interval"].map((name) => {
        const text = document.createRange();
        text.selectNodeContents(row.querySelector("." + name).firstChild);
        const [inside, cell] = [text.getBoundingClientRect(), row.querySelector("." + name).getBoundingClientRect()];
        return [inside.left - cell.left, cell.right - inside.right, inside.left, inside.right];
    }))"""
    for part in ("keys", "found"):
        for cells in page.locator(f"#{part} tbody tr").evaluate_all(script):
            assert all(left >= -0.5 and right >= -0.5 for left, right, _, _ in cells)
            assert all(after[2] - before[3] >= 4 for before, after in itertools.pairwise(cells))
    assert page.evaluate("document.documentElement.scrollWidth") <= page.evaluate("innerWidth")


def test_error_bars_and_noise_floor_are_explained(visit: Reader) -> None:
    page = visit.open(SETS)
    page.get_by_text("How to read this").click()
    words = " ".join(page.locator("#keys details").inner_text().split())
    assert "The line through it is its 95% interval" in words
    assert "hold for all 40 keys together" in words
    assert "The number after ± is the standard error" in words
    assert page.locator("#keys thead th").all_inner_texts()[2:] == ["Estimate", "± error", "95% interval"]


def test_look_up_in_an_open_vocabulary(visit: Reader) -> None:
    """Everybody has apple and half have pear; the intervals on the screen hold that (seeded)."""
    page = visit.open(OPEN)
    assert "cannot be listed" in page.locator("#keys").inner_text()
    page.goto(visit.board.page(OPEN, "?key=apple&key=pear&key=%3Cscript%3Ealert(1)%3C/script%3E"))
    rows = {row["key"]: row for row in drawn_rows(page, "found")}
    for key, truth in {"apple": 100, "pear": 50, "<script>alert(1)</script>": 0}.items():
        low, high = (
            float(end.rstrip("%").replace("−", "-")) for end in re.findall(r"[−\d.]+%", rows[key]["interval"])
        )
        assert low < truth < high
        assert high - low < 40


def test_new_keys_and_the_task_that_asks_for_them(visit: Reader, tmp_path: Path) -> None:
    """Four keys that nobody had listed, a quarter of the people each (seeded): shown, followed, and taken home."""
    page = visit.open(TREE, "?key=hello")
    panel = page.locator("#keys")
    panel.locator("tbody tr").first.wait_for()  # the search is over, and nobody has reloaded the page
    assert panel.locator("h2").inner_text() == "New keys"
    assert "4 keys were found" in panel.inner_text()
    assert "nobody holds is expected to be at most 5%" in panel.inner_text()
    assert "longer keys were cut there" in panel.inner_text()
    rows = {row["key"]: row for row in drawn_rows(page, "keys")}
    assert set(rows) == {"<b>", visible("\u202ez"), "help", "hel…"}
    for row in rows.values():
        low, high = (float(end.rstrip("%")) for end in re.findall(r"[\d.]+%", row["interval"]))
        assert low < 25 < high
        assert high - low < 12
    assert "Keys of more than 4 symbols are cut" in page.locator("#found").inner_text()
    page.goto(visit.board.page(TREE))
    panel.locator("tbody tr").first.wait_for()
    charts = json.loads(page.locator("#charts").get_attribute("data-charts") or "")
    assert {series["key"] for series in charts["series"]} == {"<b>", visible("\u202ez"), "help"}
    with page.expect_download() as started:
        page.get_by_role("button", name="Make a task of these keys").click()
    started.value.save_as(tmp_path / "listed.toml")
    listed = Task.load(tmp_path / "listed.toml")
    assert set(listed.keys.vocabulary or ()) == {"<b>", "\u202ez", "help"}
    assert listed.mechanism == TREE.mechanism


# Live


def test_new_reports_appear_without_reloading(visit: Reader) -> None:
    page = visit.open(OPEN, "?key=apple")
    page.evaluate("window.untouched = true")
    page.get_by_label("Look up a key").fill("half a wor")
    page.locator("#charts summary").click()
    before = page.locator("#reports").inner_text()
    error = drawn_rows(page, "found")[0]["error"]
    visit.board.send(OPEN, open_reports(1000, 5))
    wait_until(lambda: page.locator("#reports").inner_text() != before)
    assert int(page.locator("#reports").inner_text().replace(",", "")) == int(before.replace(",", "")) + 1000
    wait_until(lambda: drawn_rows(page, "found")[0]["error"] != error)
    assert page.evaluate("window.untouched")
    assert page.get_by_label("Look up a key").input_value() == "half a wor"
    assert page.locator("#charts details").get_attribute("open") is not None
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    assert page.locator("#status").inner_text() == "Live"


def test_a_hidden_page_asks_for_nothing(visit: Reader) -> None:
    page = visit.open(SETS)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    hide = """(hidden) => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, True)
    assert page.locator("#status").inner_text() == "Paused"
    asked.clear()
    page.wait_for_timeout(2500)
    assert asked == []
    page.evaluate(hide, False)
    wait_until(lambda: len(asked) > 0)


def test_withheld_below_the_minimum_and_shown_from_it_on(visit: Reader) -> None:
    page = visit.open(FEW, "?key=key%200")
    assert "Estimates are withheld. 100 of 300" in page.locator("#keys").inner_text().replace("\n", " ")
    assert page.locator("#figures progress").get_attribute("value") == "100"
    assert page.locator("circle:not(.mark circle)").count() == 0
    assert page.locator("#found").is_hidden()
    assert page.get_by_label("Look up a key").is_disabled()
    export = page.request.get(f"{visit.board.url}/v1/tasks/{FEW.digest.hex()}/estimates.csv")
    assert export.status == 403
    visit.board.send(FEW, crowd_reports(FEW, 200, 6))
    page.locator("#keys tbody tr").first.wait_for()
    assert page.locator("#keys tbody tr").count() == 20
    assert page.get_by_label("Look up a key").is_enabled()


# What else is on the page


def test_guarantees_refusals_and_exports(visit: Reader) -> None:
    board, width = visit.board, SETS.mechanism.layout.width
    page = visit.open(SETS)
    assert "no reports came through a shuffler" in page.locator("#figures").inner_text()
    public = bytes.fromhex(board.collector.get("/v1/key").json["key"])
    reports = crowd_reports(SETS, 200, 8)
    crowd = [seal(reports[i : i + width], public, SETS) for i in range(0, len(reports), width)]
    damaged = seal(reports[:width], public, SETS)
    crowd.append(bytes([damaged[0] ^ 1]) + damaged[1:])
    path = f"/v2/tasks/{SETS.digest.hex()}/shuffled"
    assert board.collector.upload(b"".join(crowd), "crowd", path=path).json["accepted"] == 200
    page.locator("#figures").get_by_text("200 reports in crowds of 200 or more").wait_for()
    about = board.collector.get(f"/v1/tasks/{SETS.digest.hex()}").json
    figures = page.locator("#figures").inner_text()
    assert f"ε = {about['guarantee']['shuffled']['epsilon']:.3g}" in figures
    assert "ε = 3" in figures
    privacy = page.locator("#privacy").inner_text()
    for words in ("local", "shuffled"):
        assert about["guarantee"][words]["words"] in privacy
    assert about["per_period"] in privacy
    assert "sealed for another key or task" in page.locator("#refused").inner_text()
    links = page.get_by_role("link", name=re.compile("CSV|JSON"))
    saved = [page.request.get(f"{board.url}{link.get_attribute('href')}") for link in links.all()]
    rows = list(csv.DictReader(io.StringIO(saved[0].text())))
    assert [row["key"] for row in rows] == [cell(key) for key in SETS.keys.vocabulary or ()]
    assert [row["key"] for row in saved[1].json()["estimates"]] == list(SETS.keys.vocabulary or ())


def test_what_a_month_and_a_year_add_up_to(visit: Reader) -> None:
    """Locally from the first page on, shuffled once a crowd has come; a task without periods has no such table."""
    board, width = visit.board, DAILY.mechanism.layout.width
    assert visit.open(SETS).locator("#privacy table").count() == 0
    page = visit.open(DAILY)
    rows = page.locator("#privacy .spans tbody tr")
    assert [row.split("\t") for row in rows.all_inner_texts()] == [
        ["one day", "6"],
        ["a month (30 days)", "180"],
        ["a year (365 days)", "2,190"],
    ]
    public = bytes.fromhex(board.collector.get("/v1/key").json["key"])
    reports = crowd_reports(DAILY, 150, 9)
    crowd = [seal(reports[i : i + width], public, DAILY, "2024-03-06") for i in range(0, len(reports), width)]
    path = f"/v2/tasks/{DAILY.digest.hex()}/shuffled"
    assert board.collector.upload(b"".join(crowd), "daily", path=path).json["accepted"] == 150
    page.locator("#privacy th").get_by_text("ε, shuffled").wait_for()
    spans = board.collector.get(f"/v1/tasks/{DAILY.digest.hex()}").json["over_time"]
    assert [row.split("\t")[2] for row in rows.all_inner_texts()] == [
        f"{span['shuffled']['epsilon']:.3g}" for span in spans
    ]
    (crowd_row,) = page.locator("#privacy .crowds tbody tr").all_inner_texts()
    assert crowd_row.split("\t")[:4] == ["2024-03-06", "150", "1", "150"]
    assert "no crowd has fewer than 150 reports" in page.locator("#privacy").inner_text()
    assert "crowds of 150 or more, up to 2 of one person, in one day" in page.locator("#figures").inner_text()
    assert "up to 2 reports per person, all together" in page.locator("#privacy").inner_text()


def test_the_list_of_tasks(visit: Reader) -> None:
    page = visit.page
    page.goto(f"{visit.board.url}/")
    assert page.locator(".tasks .name").all_inner_texts() == [task.name for task in TASKS]
    page.get_by_role("link", name="Pages <b>seen</b>").click()
    page.wait_for_url(visit.board.page(SETS))
    page.goto(f"{visit.board.url}/tasks/{'0' * 32}")
    assert page.get_by_role("heading").inner_text() == "No such task"
    assert all("404" in complaint for complaint in visit.complaints)
    visit.complaints.clear()


# Anybody, anywhere


@pytest.mark.parametrize("visit", [{}, {"viewport": {"width": 390, "height": 844}}], indirect=True)
def test_evil_keys_are_text_and_the_layout_holds(visit: Reader) -> None:
    page = visit.open(SETS, "?" + urlencode([("key", key) for key in EVIL]))
    assert [row["key"] for row in drawn_rows(page, "found")] == [visible(key) for key in EVIL]
    assert page.locator("main img, main script, [onerror], [onmouseover]").count() == 0
    width = page.viewport_size["width"] if page.viewport_size else 0
    assert page.evaluate("document.documentElement.scrollWidth") == width
    heights = page.locator("#found tbody tr").evaluate_all("(all) => all.map((row) => row.offsetHeight)")
    assert max(heights) <= 80
    page.wait_for_timeout(2500)  # the script has put the parts in place once more
    assert [row["key"] for row in drawn_rows(page, "found")] == [visible(key) for key in EVIL]


def test_dark_by_the_system_and_by_choice(visit: Reader, browser: Browser) -> None:
    page = visit.open(OPEN, "?key=apple")
    assert lightness(page, "body") > 200
    page.get_by_role("button", name="Dark").click()
    assert lightness(page, "body") < 40
    page.reload()
    assert lightness(page, "body") < 40
    page.get_by_role("button", name="Light").click()
    assert lightness(page, "body") > 200
    other = Reader(browser, visit.board, color_scheme="dark", storage_state=visit.context.storage_state())
    other.page.goto(visit.board.url)
    other.page.evaluate("localStorage.clear()")
    assert lightness(other.open(OPEN), "body") < 40
    other.context.close()
    assert other.complaints == []


def lightness(page: Page, place: str) -> float:
    colour = page.locator(place).evaluate("(element) => getComputedStyle(element).backgroundColor")
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3


@pytest.mark.parametrize(
    "visit", [{"color_scheme": "light"}, {"color_scheme": "dark"}], indirect=True, ids=["light", "dark"]
)
def test_contrast_labels_and_keyboard(visit: Reader) -> None:
    """All text has a contrast of 4.5 or more (WCAG AA); fields and pictures have names; Tab reaches everything."""
    page = visit.open(SETS, "?key=key%207")
    script = """() => {
        const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
        const light = (colour) => parse(colour).slice(0, 3).map((c) => c / 255)
            .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
            .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
        const behind = (e) => { for (; e; e = e.parentElement) {
            const colour = getComputedStyle(e).backgroundColor;
            if (parse(colour)[3] !== 0) return colour; } };
        const worst = {};
        for (const e of document.querySelectorAll("main *, header *")) {
            if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.offsetParent) continue;
            const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
            worst[e.className || e.tagName] = Math.min(worst[e.className || e.tagName] ?? 99, (a + 0.05) / (b + 0.05));
        }
        return worst;
    }"""
    contrasts = page.evaluate(script)
    assert len(contrasts) > 15
    assert {name: ratio for name, ratio in contrasts.items() if ratio < 4.5} == {}
    assert page.locator("svg[role=img]:not([aria-label])").count() == 0
    assert page.locator("input:not([type=hidden])").count() == page.locator("label").count() == 1
    reached = set()
    for _ in range(24):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.innerText || document.activeElement.id"))
    assert {"Skip to the content", "Tasks", "Log out", "key", "Look up", "×"} <= reached


@pytest.mark.parametrize("visit", [{"viewport": {"width": 390, "height": 844}}], indirect=True)
def test_readable_on_a_phone(visit: Reader) -> None:
    page = visit.open(VALUES)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    first = page.locator("#keys tbody tr").first
    boxes = {name: first.locator(f".{name}").bounding_box() for name in ("key", "value", "drawing")}
    assert all(box and box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in boxes.values())
    assert boxes["drawing"]["width"] > 250  # type: ignore[index]


def test_without_script(browser: Browser, board: Board) -> None:
    reader = Reader(browser, board, java_script_enabled=False)
    reader.page.goto(f"{board.url}/login")
    reader.page.get_by_label("Token").fill(board.token)
    reader.page.get_by_role("button", name="Log in").click()
    page = reader.open(SETS)
    assert page.locator("#keys tbody tr").count() == 20
    assert page.locator("#keys tbody circle").first.is_visible()
    assert page.locator("#charts tbody tr").count() == 1
    reader.context.close()


# Pictures


@pytest.fixture(scope="module")
def demo_board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    """Forty minutes of the demo, as if they had passed."""
    chosen = demo_task()
    url = f"sqlite:///{tmp_path_factory.mktemp('demo') / 'store.db'}"
    now = int(time.time()) // 60 * 60
    with collecting(url, chosen) as collector:
        crowd = zipf_population(40 * 2500, chosen.keys.count, 1, 0.9, 3.0, signed=False)
        packed, _ = privatize(chosen, crowd.entries, InsecureCoins(1), SimulatedSeeds(1))
        ends = np.cumsum([2000 + 733 * minute % 500 for minute in range(40)])
        for minute, reports in enumerate(np.split(packed, ends)[:40]):
            data, mixed = reports.tobytes(), len(reports) if minute % 8 == 3 else None
            check, moment = hashlib.blake2b(data, digest_size=16).digest(), now - 60 * (39 - minute)
            batch = Batch(chosen.digest.hex(), f"m{minute}", len(reports), data, check, moment, mixed)
            collector.service.store.append([batch])
        yield Board(collector)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_charts_over_time(theme: str, browser: Browser, demo_board: Board) -> None:
    """Lines with bands for the three largest keys and a bar a minute; with HUBBUB_SCREENSHOTS, the pictures."""
    reader = Reader(browser, demo_board, color_scheme=theme, viewport={"width": 1280, "height": 1000})
    reader.log_in()
    chosen = demo_board.collector.task
    page = reader.open(chosen)
    wait_until(lambda: page.locator("canvas").count() == 2)
    top = [row["key"] for row in drawn_rows(page, "keys")][:3]
    assert page.locator("#legend bdi").all_inner_texts() == top
    inked = page.locator("#estimates-chart canvas").evaluate(
        """(canvas) => {
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            const seen = new Set();
            for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200) seen.add(data.slice(i, i + 3).join());
            return [...seen];
        }"""
    )
    seen = np.array([[int(part) for part in colour.split(",")] for colour in inked])
    for number in (1, 2, 3):
        series = page.evaluate(
            """(name) => {
                const probe = document.body.appendChild(document.createElement("i"));
                probe.style.color = `var(${name})`;
                return getComputedStyle(probe).color.match(/\\d+/g).map(Number);
            }""",
            f"--series-{number}",
        )
        assert np.abs(seen - series).max(axis=1).min() < 45, "a line is not drawn"
    if os.environ.get("HUBBUB_SCREENSHOTS"):
        from PIL import Image

        name = "dashboard.png" if theme == "light" else "dashboard-dark.png"
        page.wait_for_timeout(300)
        picture = Image.open(io.BytesIO(page.screenshot(full_page=True)))
        picture.convert("RGB").quantize(256).save(IMAGES / name, optimize=True)
        assert (IMAGES / name).stat().st_size < 300_000
    reader.context.close()
    assert reader.complaints == []
