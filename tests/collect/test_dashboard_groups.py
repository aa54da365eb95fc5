"""Groups and time on the dashboard: filters, comparisons, what moved, files of what is shown, and hostile addresses.

HUBBUB_SCREENSHOTS=1 also writes the picture of the documentation to docs/images.
"""

from __future__ import annotations

import csv
import datetime
import hashlib
import html
import io
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode

import numpy as np
import pytest
from browsing import chromium
from collecting import SALT, Collector, collecting
from live import Answer, ask

from helpers import refused
from hubbub.collect.dashboard.choices import View
from hubbub.collect.remembered import Remembered
from hubbub.collect.shelves import Shelf
from hubbub.collect.store import Batch
from hubbub.collect.trends import beside, compared, step_before, trend
from hubbub.device.client import encode_record, privatize
from hubbub.model.record import Entries
from hubbub.primitives.coins import InsecureCoins, SimulatedSeeds
from hubbub.protocol.periods import period_of
from hubbub.protocol.strata import Stratum, text_of
from hubbub.protocol.task import Task
from hubbub.server.portions import Choice

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
TODAY = datetime.datetime.now(datetime.UTC).date()
#: Everybody sees one of 30 pages, or none; in the last week, 5 points more of them see page 7.
PAGES, RISEN, RISE = 30, 7, 0.05
WEEKS, PEOPLE = 8, 40_000
LABELS = {"country": ["at", "de", "fr"], "version": ["1", "2"]}


def weekly(name: str, **more: Any) -> Task:
    mechanism = {"name": "collision", "epsilon": 4.0, "max_entries": 2}
    keys = {"kind": "closed", "vocabulary": [f"page {i}" for i in range(PAGES)], "salt": SALT}
    return Task.parse({"name": name, "period": "week", "keys": keys, "mechanism": mechanism, **more})


CROWD = weekly("Pages seen", labels=LABELS, minimum_reports=500)
QUIET = weekly("Nothing happens", labels=LABELS)
#: Whose record has not changed sends the same bytes again.
SAME = weekly("The same people", memoize="record", memoize_cap=4)
PLAIN = weekly("No groups", period="once")
ONCE = weekly("Groups without time", period="once", labels=LABELS)
#: Keys that cannot be listed, and keys that nobody has listed.
OPEN = weekly("Any word", labels=LABELS, keys={"kind": "folded", "bits": 16, "salt": SALT})
TREE = weekly(
    "To be found",
    labels=LABELS,
    keys={
        "kind": "tree",
        "bits": 16,
        "tree": {"longest": 4, "levels": [2, 2], "shares": [1, 1, 1]},
        "salt": SALT,
    },
    mechanism={"name": "collision", "epsilon": 6.0, "max_entries": 1},
)
TASKS = (CROWD, QUIET, SAME, PLAIN, ONCE, OPEN, TREE)


def week(ago: int) -> str:
    return period_of(CROWD, TODAY - datetime.timedelta(weeks=ago))


def reports_of(task: Task, shares: np.ndarray[Any, Any], people: int, seed: int) -> bytes:
    """Everybody holds at most one page, by these shares (seeded, hence insecure)."""
    drawn = np.random.default_rng(seed).choice(PAGES + 1, people, p=[*shares, 1 - shares.sum()])
    holds = drawn < PAGES
    offsets = np.concatenate([[0], np.cumsum(holds)]).astype(np.int64)
    ids = drawn[holds].astype(np.uint64)
    entries = Entries(ids, np.full(len(ids), 1 << 30, dtype=np.int64), offsets)
    return privatize(task, entries, InsecureCoins(seed), SimulatedSeeds(seed))[0].tobytes()


def reports_with(task: Task, keys: Sequence[str], seed: int) -> bytes:
    """Everybody holds one of these keys, in turn (seeded, hence insecure)."""
    ids = np.concatenate([encode_record(task, {key})[0].ids for key in keys])
    values = np.full(len(ids), 1 << 30, dtype=np.int64)
    entries = Entries(ids, values, np.arange(len(ids) + 1, dtype=np.int64))
    return privatize(task, entries, InsecureCoins(seed), SimulatedSeeds(seed))[0].tobytes()


def shares(**changes: float) -> np.ndarray[Any, Any]:
    """A long tail, and what is different."""
    usual = 0.2 / np.arange(1, PAGES + 1)
    for name, change in changes.items():
        usual[int(name.removeprefix("page"))] += change
    return usual


def put(collector: Collector, task: Task, stratum: Stratum, reports: bytes) -> None:
    """Reports as if they had come in their own week."""
    count = len(reports) // task.mechanism.layout.width
    day = datetime.date.fromisoformat(f"{stratum.period}-4") if stratum.period else TODAY
    moment = int(datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.UTC).timestamp())
    text = text_of(task, stratum)
    name = hashlib.blake2b(text.encode() + reports, digest_size=16)
    digest = task.digest.hex()
    batch = Batch(digest, name.hexdigest(), count, reports, name.digest(), moment, stratum=text)
    collector.service.store.append([batch])


def fill(collector: Collector) -> None:
    for ago in range(WEEKS):
        now = shares(**({f"page{RISEN}": RISE} if ago == 0 else {}))
        for place, country in enumerate(("de", "fr")):
            for version in ("1", "2"):
                # In France page 3 is seen by 6 points more, in every week.
                here = now.copy()
                here[3] += 0.06 * (country == "fr")
                seed = 1000 * ago + 10 * place + int(version)
                at = Stratum((country, version), week(ago))
                put(collector, CROWD, at, reports_of(CROWD, here, PEOPLE // 4, seed))
    put(collector, CROWD, Stratum(("at", "1"), week(0)), reports_of(CROWD, shares(), 100, 99))
    for ago in (1, 0):
        put(collector, QUIET, Stratum(("de", "1"), week(ago)), reports_of(QUIET, shares(), 5000, 50 + ago))
    fill_risen(collector)
    put(collector, PLAIN, Stratum(), reports_of(PLAIN, shares(), 3000, 60))
    for country in ("de", "fr"):
        put(collector, ONCE, Stratum((country, "1")), reports_of(ONCE, shares(), 3000, ord(country[0])))
    for ago in (1, 0):
        at = Stratum(("de", "1"), week(ago))
        put(collector, OPEN, at, reports_with(OPEN, ["pear", "plum"][: 1 + ago] * 1000, 70 + ago))
    for country, keys in (("de", ["help", "hell"]), ("fr", ["help", "ache"])):
        at = Stratum((country, "1"), week(0))
        put(collector, TREE, at, reports_with(TREE, keys * 1000, ord(country[0])))


def fill_risen(collector: Collector) -> None:
    """Three weeks of the same people: nothing happens, and then one in 20, who saw no page, sees one."""
    some = round(RISE * PEOPLE)
    one = np.where(np.arange(PAGES) == RISEN, 1.0, 0.0)
    same = reports_of(SAME, shares() / (1 - RISE), PEOPLE - some, 1)
    before, after = (reports_of(SAME, held, some, seed) for held, seed in ((0 * one, 2), (one, 3)))
    for ago, others in enumerate((after, before, before)):
        put(collector, SAME, Stratum((), week(ago)), same + others)


class Board:
    """A collector with reports of eight weeks, and somebody who may read."""

    def __init__(self, collector: Collector) -> None:
        self.collector, self.url = collector, collector.address
        self.token = collector.service.tokens.new("analyst")
        headers = {"Origin": self.url}
        login = ask(f"{self.url}/login", urlencode({"token": self.token}).encode(), headers)
        self.cookie = dict(login.headers)["set-cookie"].partition(";")[0]

    def page(self, task: Task, query: str = "") -> Answer:
        """A page as a browser without script gets it."""
        return ask(f"{self.url}/tasks/{task.digest.hex()}{query}", headers={"Cookie": self.cookie})

    def api(self, task: Task, question: str) -> Answer:
        return self.collector.get(f"/v1/tasks/{task.digest.hex()}/{question}")


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    url = f"sqlite:///{tmp_path_factory.mktemp('groups') / 'store.db'}"
    with pytest.MonkeyPatch.context() as patch, collecting(url, *TASKS) as collector:
        patch.setattr("hubbub.collect.dashboard.courses._PATIENCE", math.inf)  # on slow machines, too
        fill(collector)
        yield Board(collector)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def page(browser: Browser, board: Board, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page of somebody who is logged in; whatever the browser complains about is an error."""
    options = {"viewport": {"width": 1280, "height": 1000}, **getattr(request, "param", {})}
    context = browser.new_context(**options)
    context.set_default_timeout(60_000)
    name, _, value = board.cookie.partition("=")
    context.add_cookies([{"name": name, "value": value, "url": board.url}])
    opened = context.new_page()
    complaints: list[str] = []
    opened.on("console", lambda said: complaints.append(said.text))
    opened.on("pageerror", lambda problem: complaints.append(str(problem)))
    yield opened
    context.close()
    assert complaints == []


def address(board: Board, task: Task, query: str = "") -> str:
    return f"{board.url}/tasks/{task.digest.hex()}{query}"


def keys_in(page: Page, part: str) -> list[str]:
    return page.locator(f"#{part} tbody .key").all_inner_texts()


def numbers(text: str) -> list[float]:
    return [float(found.replace("\u2212", "-")) for found in re.findall(r"[+\u2212]?[\d.]+", text)]


# What moved


def test_a_key_that_rises_by_five_points_is_shown_and_no_other(board: Board, page: Page) -> None:
    """One of 30 keys rises by 5 points among 40,000 people; it is listed, at the page's own level, and nothing else is.

    Seeds are fixed; with others it would come out the same but for 1e-7. For all that the page knows, a difference has
    an error of 0.3 to 0.4 points, so its interval reaches 0.88 points or more to either side. But 38,000 people send
    the same bytes in both weeks, and differences have the noise of the other 2,000: 0.06 points, and 0.21 for the key
    that all of these hold. So another key is listed after a deviation of 14 standard errors, this one is not after 18,
    and 5 points are outside its interval (1.2 to either side) after 5.5 (4e-8). In the week before nobody's record has
    changed, so nothing differs. What weeks of other people look like if nothing happens is for the next test.
    """
    page.goto(address(board, SAME))
    assert page.locator("#moved-title").inner_text() == f"What moved since {week(1)}"
    assert keys_in(page, "moved") == [f"page {RISEN}"]
    (row,) = page.locator("#moved tbody tr").all()
    (change,), (error,) = (numbers(row.locator(f".{name}").inner_text()) for name in ("value", "error"))
    low, high = numbers(row.locator(".interval").inner_text())
    assert low < 100 * RISE < high
    assert 0 < low < change < high
    assert 0.3 < error < 0.6
    words = page.locator("#moved .first-words").inner_text()
    assert words.startswith(f"1 of 30 keys differs between {week(1)} and {week(0)}")
    assert f"{week(0)} is not over" in page.locator("#moved").inner_text()
    page.goto(address(board, SAME, f"?period={week(1)}"))
    assert page.locator("#moved-title").inner_text() == f"What moved since {week(2)}"
    assert keys_in(page, "moved") == []
    assert "Nothing that can be told from noise." in page.locator("#moved").inner_text()


def test_weeks_in_which_nothing_happens_seldom_look_different(board: Board) -> None:
    """12 pairs of weeks and groups that share no report: at the level of 95%, each shows a key with 5% at most.

    So 8 or more do with less than 2e-8; with intervals of 0.7 times the width, each does with about 55%.
    """
    asked = board.collector.service, CROWD, "period"
    alarms = 0
    for ago in (2, 4, 6):
        for country in ("de", "fr"):
            for version in ("1", "2"):
                choice = Choice({"country": country, "version": version})
                found = compared(*asked, (week(ago), week(ago - 1)), choice, simultaneous=True)
                alarms += found.count > 0
    assert alarms < 8


def test_each_week_is_a_point_of_the_curve(board: Board, page: Page) -> None:
    """The jump is in the last point; all reports so far, one click away, hide it. The table has the same numbers."""
    page.goto(address(board, CROWD, f"?key=page+{RISEN}"))
    charts = json.loads(page.locator("#charts").get_attribute("data-charts") or "")
    assert charts["names"] == [*(week(ago) for ago in range(WEEKS - 1, 0, -1)), f"{week(0)}, so far"]
    (series,) = charts["series"]
    went = board.api(CROWD, f"trend?keys=page+{RISEN}").json
    assert went["missing"] == 0
    points = went["estimates"][f"page {RISEN}"]
    assert [series[name] for name in ("value", "low", "high")] == [
        [point[name] for point in points] for name in ("value", "low", "high")
    ]
    assert [point["change"]["differs"] for point in points[1:]] == [False] * (WEEKS - 2) + [True]
    assert series["low"][-1] > max(series["high"][:-1])
    page.get_by_text("Each week, as a table").click()
    cells = page.locator("#charts .periods tbody tr").all_inner_texts()
    assert len(cells) == WEEKS
    assert cells[0].startswith(f"{week(0)}\t40,000\t")
    assert cells[0].endswith("changed")
    assert not any("changed" in cell for cell in cells[1:])
    page.get_by_role("navigation", name="Which curve").get_by_role("link", name="all so far").click()
    page.wait_for_url("**time=all**")
    charts = json.loads(page.locator("#charts").get_attribute("data-charts") or "")
    assert charts["names"] is None
    assert max(charts["series"][0]["value"]) < points[0]["value"] + RISE / 2


def test_what_takes_too_long_comes_later(board: Board) -> None:
    """At least two periods, the latest; what is there is what it will be."""
    whole = trend(board.collector.service, CROWD, ["page 9"], Choice(), level=0.9)
    board.collector.service.points = Remembered(100)
    part = trend(board.collector.service, CROWD, ["page 9"], Choice(), level=0.9, seconds=0.0)
    assert part["missing"] == WEEKS - 2
    rows = whole["estimates"]["page 9"][-2:]
    assert part["estimates"]["page 9"] == [{**rows[0], "change": None}, rows[1]]


def test_the_period_before_is_one_of_the_task_with_reports_enough() -> None:
    """Neither a longer one, nor one that is withheld, nor one of other groups, nor one that has not begun."""
    de, fr = ("de", "1"), ("fr", "1")
    now = datetime.date(2026, 10, 25)  # the last day of week 43
    there = {
        Stratum(labels, period): Shelf(period, "", reports)
        for labels, period, reports in (
            (de, "2026", 9000),
            (de, "2026-W40", 900),
            (de, "2026-W41", 499),
            (de, "2026-W42", 600),
            (fr, "2026-W41", 400),
            (fr, "2026-W43", 600),
            (de, "2026-W44", 900),
            (fr, "2027-W30", 9000),
        )
    }
    german, french = Choice({"country": "de"}), Choice({"country": "fr"})
    assert step_before(CROWD, there, Choice(), now) == ("2026-W42", "2026-W43")
    assert step_before(CROWD, there, Choice(last="2026-W42"), now) == ("2026-W41", "2026-W42")
    assert step_before(CROWD, there, german, now) == ("2026-W40", "2026-W42")
    assert step_before(CROWD, there, Choice({}, "2026-W42", "2026-W42"), now) == ("2026-W41", "2026-W42")
    assert step_before(CROWD, there, french, now) is None
    assert step_before(CROWD, there, Choice({"country": "de"}, "2026-W40", "2026-W40"), now) is None
    both = Choice({"country": "de", "version": "1"}, "2026-W40", "2026-W41")
    assert beside(both, "period") == Choice({"country": "de", "version": "1"})
    assert beside(both, "country") == Choice({"version": "1"}, "2026-W40", "2026-W41")


# Filters


def test_filters_are_chosen_kept_and_shared(board: Board, page: Page) -> None:
    """With selects and a button; all that is listed is then of the group, and the address says all of it."""
    page.goto(address(board, CROWD, "?level=99&key=page+1"))
    panel = page.locator(".groups")
    assert "100 reports wait: reports of a group count once there are 500 of them." in page.content()
    for name, value in (("country", "de"), ("From", week(3)), ("To", week(2))):
        panel.get_by_role("combobox", name=name, exact=True).select_option(value)
    panel.get_by_role("button", name="Show").click()
    page.wait_for_url("**country**")
    shown = f"country de, from {week(3)}, to {week(2)}"
    assert f"Shown: {shown}. 40,000 of 320,000 counted reports." in page.locator("#shown").inner_text()
    assert shown in page.locator("#keys .card-head").inner_text()
    assert "With 40,000 reports, a key stands out" in page.locator("#keys").inner_text()
    query = page.url.partition("?")[2]
    assert set(unquote(query).split("&")) == {
        "level=99",
        "where=country=de",
        f"from={week(3)}",
        f"to={week(2)}",
        "key=page+1",
    }
    group = f"where=country=de&from={week(3)}&to={week(2)}&level=0.99"
    truth = {row["key"]: row for row in board.api(CROWD, f"estimates?{group}").json["estimates"]}
    assert keys_in(page, "keys") == sorted(truth, key=lambda key: -truth[key]["value"])
    first = page.locator("#keys tbody tr").first
    assert numbers(first.locator(".value").inner_text())[0] == pytest.approx(
        100 * truth[keys_in(page, "keys")[0]]["value"], abs=0.006
    )
    page.goto(f"{address(board, CROWD)}?{query}")  # somebody else, later
    assert page.locator(".groups select").first.input_value() == "country=de"
    assert keys_in(page, "found") == ["page 1"]
    page.get_by_role("navigation", name="One week").get_by_role("link", name=week(1)).click()
    page.wait_for_url(f"**period={week(1)}**")
    assert f"Shown: country de, {week(1)}." in page.locator("#shown").inner_text()
    page.get_by_role("link", name="Everybody, all time").click()
    page.wait_for_function("!location.search.includes('country')")
    assert "level=99" in page.url


def test_withheld_groups_and_groups_without_reports_say_so(board: Board, page: Page) -> None:
    """In a sentence, with no number of anybody else in their place."""
    for task, query, words in (
        (CROWD, "?where=country%3Dat", "There are no reports of what was asked for (country at)."),
        (CROWD, "?period=2020-W10", "There are no reports of what was asked for (2020-W10)."),
        (QUIET, "?where=country%3Dfr", "There are no reports of what was asked for (country fr)."),
        (PLAIN, f"?period={week(0)}", "has no periods"),
        (PLAIN, "?where=country%3Dde", "has no label 'country': it has none."),
        (CROWD, "?where=planet%3Dmars", "has no label 'planet'"),
        (CROWD, "?where=country%3Dmars", "'mars' is no country"),
        (CROWD, f"?period={week(0)}&from={week(1)}", "not both"),
    ):
        page.goto(address(board, task, query))
        assert words in page.locator("#shown").get_by_role("alert").inner_text()
        assert page.locator("#keys tbody tr, #moved tbody tr, #compared tbody tr").count() == 0
        assert "There are no numbers of this group." in page.locator("#keys").inner_text()
        assert page.get_by_label("Look up a key").is_disabled()
        assert page.locator("a[href*='estimates.csv']").count() == 0


@pytest.mark.parametrize(
    "query",
    [
        urlencode([("where", "<script>alert(1)</script>")]),
        urlencode([("where", "country=<script>alert(1)</script>")]),
        urlencode([("where", "country=" + "x" * 10_000)]),
        urlencode([("where", f"country=de{i}") for i in range(300)]),
        urlencode([("where", "country=de"), ("where", "country=fr")]),
        "where=%00&where=%ff%fe&where=%ED%A0%80",
        f"period={week(0)}&period={week(1)}",
        "period=<script>alert(1)</script>",
        "period=" + "9" * 10_000,
        "period=2026-W99&from=&to=",
        "from=9999-W52&to=0000-01",
        f"from={week(0)}&to={week(2)}",
        "by=<script>alert(1)</script>&first=a&second=b",
        "by=country",
        "by=country&first=de",
        "by=country&first=de&second=de",
        "by=country&first=de&second=at",
        "by=country&first=de&second=" + "y" * 10_000,
        "by=period&first=never&second=ever",
        "by=" + "z" * 10_000 + "&first=1&second=2",
        "by=key&first=a&second=b",
        "time=" + "t" * 5000,
        "time=all&where=country%3Dde",
        quote("где=страна", safe="="),
    ],
    ids=lambda query: query[:40],
)
def test_hostile_addresses_get_a_page(board: Board, query: str) -> None:
    """Of every task: a page of usual size with a sentence at most, in which nothing that was asked for runs."""
    for task in TASKS:
        for part in ("", "&part=1"):
            answer = board.page(task, f"?{query}{part}")
            assert answer.status == 200, answer.body[:300]
            text = answer.body.decode()
            assert "<script>alert" not in text
            assert len(text) < 200_000


def test_long_addresses_are_cut(board: Board) -> None:
    """What a page repeats of an address has an end: its links do not grow."""
    view = View.parse([], "", "", "", "", ["x" * 10_000] * 500, {"by": "y" * 10_000, "period": "z" * 10_000})
    assert len(view.address()) < 3000
    assert dict(view.hidden("where", "period"))["by"] == "y" * 100


# Side by side


def test_two_groups_side_by_side(board: Board, page: Page) -> None:
    """In France page 3 has 6 points more: it comes first, and what cannot be told apart is dim and said to be."""
    page.goto(address(board, CROWD, "?where=version%3D2&where=country%3Dde&level=99"))
    page.get_by_text("Compare two groups").click()
    forms = page.locator(".groups details form")
    assert forms.count() == 3
    forms.first.get_by_role("button", name="Compare").click()
    page.wait_for_url("**by=country**")
    assert page.locator("#compared-title").inner_text() == "country de and fr, version 2"
    assert "1 of 30 keys differs between de and fr" in page.locator("#compared .first-words").inner_text()
    rows = page.locator("#compared tbody tr")
    assert rows.count() == 20
    assert keys_in(page, "compared")[0] == "page 3"
    low, high = numbers(rows.first.locator(".interval").inner_text())
    assert 0 < low < 6 < high
    assert rows.first.get_attribute("class") is None
    dim = page.locator("#compared tbody tr.noise")
    assert dim.count() == 19
    assert dim.filter(has_text="cannot be told apart").count() == 19
    page.locator("#compared").get_by_role("link", name="Close").click()
    page.wait_for_function("!location.search.includes('by=')")
    assert not page.locator("#compared").is_visible()
    page.goto(address(board, CROWD, "?by=version&first=1&second=2"))
    assert "cannot be told apart in any of 30 keys" in page.locator("#compared").inner_text()
    assert page.locator("#compared tbody tr").count() == 0, "a selection of noise is shown"
    page.get_by_role("link", name=f"Compare {week(0)} with the week before").click()
    page.wait_for_url("**by=period**")
    assert page.locator("#compared-title").inner_text() == f"{week(1)} and {week(0)}"
    assert keys_in(page, "compared")[0] == f"page {RISEN}"


def test_what_was_dropped_is_said_before_differences(tmp_path: Path) -> None:
    """Everybody has 12 pages of which 2 count: of two groups and of two weeks, of each side by its name."""
    keys = {"kind": "closed", "vocabulary": CROWD.keys.vocabulary, "salt": SALT, "count_lengths": True}
    task = weekly("Long records", labels=LABELS, keys=keys)
    records = Entries(
        np.tile(np.arange(12, dtype=np.uint64), 2000),
        np.full(24_000, 1 << 30, dtype=np.int64),
        np.arange(0, 24_001, 12, dtype=np.int64),
    )
    with collecting(f"sqlite:///{tmp_path / 'store.db'}", task) as collector:
        for seed, (country, ago) in enumerate((country, ago) for country in ("de", "fr") for ago in (1, 0)):
            made = privatize(task, records, InsecureCoins(seed), SimulatedSeeds(seed))[0].tobytes()
            put(collector, task, Stratum((country, "1"), week(ago)), made)
        page = Board(collector).page(task, "?by=country&first=de&second=fr").body.decode()
    parts = {
        name: page.partition(f'<section id="{name}"')[2].partition("</section>")[0]
        for name in ("compared", "moved")
    }
    for name, sides in (("compared", ("de", "fr")), ("moved", (week(1), week(0)))):
        said = parts[name]
        places = [said.index("first-words"), *(said.index(f'reading">{side}: ') for side in sides)]
        assert places == sorted(places)
        assert "How long is not known: at least" in said
        assert places[-1] < said.find("<table") or "<table" not in said


def test_a_group_is_not_compared_with_itself(board: Board) -> None:
    with refused("two different groups"):
        compared(board.collector.service, CROWD, "country", ("de", "de"), Choice())
    assert board.api(CROWD, "compare?by=country&first=de&second=de").status == 422


# Files


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def links(board: Board, task: Task, query: str) -> dict[str, str]:
    """The downloads of a page, by what they are called; of two comparisons, that which was asked for."""
    text = board.page(task, query).body.decode()
    found = re.findall(r'<a(?: class="next")? href="(/v1/[^"]+)"[^>]*>([^<]+)</a>', text)
    return {name: html.unescape(address) for address, name in reversed(found)}


def test_files_have_what_is_shown(board: Board) -> None:
    """The same groups, level and quantity as the page, and the same numbers as the API."""
    query = f"?where=country%3Dfr&from={week(2)}&level=80&key=page+3&show=20"
    files = links(board, CROWD, f"{query}&by=period&first={week(3)}&second={week(1)}")
    group = f"where=country%3Dfr&from={week(2)}&level=0.8"
    beside_it = f"by=period&first={week(3)}&second={week(1)}&where=country%3Dfr&level=0.8&simultaneous=true"
    for name, question, columns in (
        ("The 20 keys that are listed, CSV", f"estimates?{group}&top=20", "value error low high"),
        ("All keys, CSV", f"estimates?{group}&top=1000", "value error low high"),
        ("Keys that were looked up, CSV", f"estimates?{group}&keys=page+3", "value error low high"),
        (
            "All 30 differences, CSV",
            f"compare?{beside_it}&top=1000",
            "first second difference error low high",
        ),
    ):
        saved = rows_of(board.collector.get(files[name]).body.decode())
        said = board.api(CROWD, question).json
        truth = {row["key"]: row for row in said.get("estimates") or said["differences"]}
        assert len(saved) == len(truth)
        for row in saved:
            for column in columns.split():
                assert float(row[column]) == pytest.approx(truth[row["key"]][column], rel=1e-9)
    assert board.collector.get(files["Each week, JSON"]).json["missing"] == 0
    points = board.collector.get(files["Each week, JSON"]).json["estimates"]["page 3"]
    for name in ("Each week, CSV", "This curve, CSV"):
        saved = rows_of(board.collector.get(files[name]).body.decode())
        assert [(row["period"], row["group"]) for row in saved] == [
            (point["period"], f"country fr, from {week(2)}") for point in points
        ]
        assert [float(row["value"]) for row in saved] == [pytest.approx(point["value"]) for point in points]


# Other kinds of keys


def test_keys_of_an_open_vocabulary(board: Board, page: Page) -> None:
    """Compared are those that were looked up: half had pear last week, and all this week (seeded)."""
    page.goto(address(board, OPEN, f"?by=period&first={week(1)}&second={week(0)}"))
    assert "look up the keys that are to be compared" in page.locator("#compared").inner_text()
    assert not page.locator("#moved").is_visible()
    page.goto(address(board, OPEN, "?key=pear&key=%3Ci%3E"))
    assert keys_in(page, "moved") == ["pear"]
    low, high = numbers(page.locator("#moved tbody .interval").inner_text())
    assert 0 < low < 50 < high


def test_found_keys_of_a_group(board: Board, page: Page) -> None:
    """They are found among everybody, and estimated for whom is asked: nobody in France has hell (seeded)."""
    page.goto(address(board, TREE, "?where=country%3Dfr"))
    page.locator("#keys tbody tr").first.wait_for()
    rows = dict(
        zip(keys_in(page, "keys"), page.locator("#keys tbody .interval").all_inner_texts(), strict=True)
    )
    assert rows.keys() == {"help", "hell", "ache"}
    for key, truth in (("help", 50), ("hell", 0), ("ache", 50)):
        low, high = numbers(rows[key].replace("%", ""))
        assert low < truth < high
        assert high - low < 30
    assert "those of all groups; the numbers are of country fr" in page.locator("#keys").inner_text()


# Anywhere


@pytest.mark.parametrize(
    "page",
    [
        {"viewport": {"width": 390, "height": 844}},
        {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
        {"viewport": {"width": 1024, "height": 800}},
    ],
    indirect=True,
    ids=["phone", "dark phone", "narrow"],
)
def test_the_layout_holds_and_text_can_be_read(board: Board, page: Page) -> None:
    """No wider than the screen, every field has a label, and text has a contrast of 4.5 or more (WCAG AA)."""
    page.goto(address(board, CROWD, "?where=version%3D2&by=country&first=de&second=fr&key=page+1"))
    page.get_by_text("Each week, as a table").click()
    width = page.viewport_size["width"] if page.viewport_size else 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".groups select").evaluate_all("(all) => all.every((one) => one.labels.length === 1)")
    script = """() => {
        const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
        const light = (colour) => parse(colour).slice(0, 3).map((c) => c / 255)
            .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
            .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
        const behind = (e) => { for (; e; e = e.parentElement) {
            const colour = getComputedStyle(e).backgroundColor;
            if (parse(colour)[3] !== 0) return colour; } };
        return [...document.querySelectorAll(".groups *, #shown *, #compared *, #moved *, #charts *")]
            .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) && e.offsetParent)
            .map((e) => [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x))
            .map(([a, b]) => (a + 0.05) / (b + 0.05));
    }"""
    contrasts = page.evaluate(script)
    assert len(contrasts) > 50
    assert min(contrasts) >= 4.5


@pytest.mark.parametrize("page", [{"java_script_enabled": False}], indirect=True)
def test_without_script(board: Board, page: Page) -> None:
    page.goto(address(board, CROWD))
    page.locator(".groups select").first.select_option("country=fr")
    page.locator(".groups").get_by_role("button", name="Show").click()
    assert "Shown: country fr." in page.locator("#shown").inner_text()
    assert page.locator("#moved tbody tr").count() >= 1
    assert page.locator("#charts .periods tbody tr").count() == WEEKS


@pytest.mark.parametrize("page", [{"viewport": {"width": 1280, "height": 1000}}], indirect=True)
def test_polling_keeps_what_is_chosen(board: Board, page: Page) -> None:
    """New reports appear while somebody looks at a group; what is typed and chosen stays."""
    page.goto(address(board, QUIET, "?where=country%3Dde"))
    page.locator(".groups select").nth(1).focus()
    assert "10,000 of 10,000 counted reports" in page.locator("#shown").inner_text()
    put(board.collector, QUIET, Stratum(("de", "1"), week(0)), reports_of(QUIET, shares(), 300, 77))
    page.locator("#shown").get_by_text("10,300 of 10,300 counted reports").wait_for()
    assert page.evaluate("document.activeElement.tagName") == "SELECT"
    if os.environ.get("HUBBUB_SCREENSHOTS"):
        from PIL import Image

        page.goto(address(board, CROWD))
        page.locator("canvas").nth(1).wait_for()
        page.wait_for_timeout(300)
        picture = Image.open(io.BytesIO(page.screenshot(full_page=True)))
        picture.convert("RGB").quantize(256).save(IMAGES / "dashboard-groups.png", optimize=True)
        assert (IMAGES / "dashboard-groups.png").stat().st_size < 300_000
