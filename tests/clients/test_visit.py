"""The demo's page for visitors: the record is randomized in the page, and nothing but the report leaves it."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browsing import chromium
from collecting import eventually

from hubbub.collect.api import create_app
from hubbub.collect.dashboard import visiting
from hubbub.collect.serving import serving
from hubbub.collect.settings import Settings
from hubbub.collect.showcase import demo_reports, demo_task
from hubbub.collect.store import Store
from hubbub.device.upload import Uploader
from hubbub.primitives.envelope import unseal

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TASK = demo_task()
PATH = f"/v1/tasks/{TASK.digest.hex()}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


class Demo:
    """The demo's service without its crowd, and a visitor."""

    def __init__(self, app: Any, address: str, browser: Browser, script: str) -> None:
        self.address, self.service = address, app.state.service
        self.complaints, self.posted = list[str](), list[bytes]()
        self.page: Page = browser.new_page()
        self.page.set_default_timeout(60_000)
        self.page.add_init_script(script)
        self.page.on("console", lambda said: self.complaints.append(said.text))
        self.page.on("pageerror", lambda problem: self.complaints.append(str(problem)))
        self.page.on("request", self._look)
        self.page.goto(f"{address}/visit")

    def _look(self, request: Any) -> None:
        assert request.url.startswith(self.address)
        assert "migraine" not in request.url
        if request.method != "GET":
            assert request.url == f"{self.address}{PATH}/reports"
            assert "authorization" not in request.headers
            self.posted.append(request.post_data_buffer)

    def says(self, place: str, words: str) -> None:
        self.page.wait_for_function(
            "([place, words]) => document.querySelector(place).innerText.includes(words)", arg=[place, words]
        )

    def shown(self) -> bytes:
        return bytes.fromhex(self.page.inner_text("#bytes"))

    @property
    def reports(self) -> int:
        return int(self.service.overview(TASK)["reports"])


@pytest.fixture
def demo(browser: Browser, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Demo]:
    app = create_app(Store(f"sqlite:///{tmp_path}/s.db"), [TASK], Settings(public_reports=60))
    app.include_router(visiting(TASK))
    with serving(app) as address:
        made = Demo(app, address, browser, getattr(request, "param", ""))
        yield made
        made.page.close()
    assert made.complaints == []


def test_a_visitor_reports_once_a_week_and_sees_the_bytes(demo: Demo) -> None:
    page = demo.page
    demo.says("#outcome", "3 bytes will leave")
    assert demo.posted == []
    samples = page.inner_text("#samples")
    page.click("label:has-text('migraine')")
    demo.says("#ticked", "1 ticked.")
    assert page.inner_text("#samples") != samples
    for topic in ("sleep", "flu", "cough", "anxiety", "stress", "eczema"):
        page.click(f"label:has-text('{topic}')")
    demo.says("#ticked", "7 ticked; 6 of them, drawn at random, will count.")
    page.click("#report")
    demo.says("#outcome", "Sent, and acknowledged")
    (body,) = demo.posted
    envelope = unseal(body, kind=b"R")
    assert (envelope.count, bytes(envelope.task), bytes(envelope.payload)) == (1, b"", demo.shown())
    assert demo.reports == 1
    demo.says("#reports", "1")  # it moves while one looks
    page.reload()
    demo.says("#left", "This browser has reported this week")
    assert demo.shown() == envelope.payload
    assert page.is_disabled("#report")
    page.click("#another")
    demo.says("#outcome", "3 bytes will leave")
    page.click("#report")
    demo.says("#outcome", "Sent, and acknowledged")
    assert demo.reports == 2
    assert len(demo.posted) == 2


def test_a_visitor_who_comes_back_next_week_may_report_again(demo: Demo) -> None:
    """To look at the page spends nothing: the next week's report is the visitor's to make."""
    page, now = demo.page, datetime.datetime.now()
    page.clock.set_fixed_time(
        now - datetime.timedelta(days=7)
    )  # a week that has begun, by the collector's clock
    page.reload()
    page.click("#report")
    demo.says("#outcome", "Sent, and acknowledged")
    first = demo.shown()
    page.clock.set_fixed_time(now)
    for _ in range(2):
        page.reload()
        demo.says("#outcome", "3 bytes will leave")
    page.click("label:has-text('migraine')")
    page.click("#report")
    demo.says("#left", "all that has left of your answers")
    demo.says("#outcome", "Sent, and acknowledged")
    assert demo.reports == 2
    assert [bytes(unseal(body, kind=b"R").payload) for body in demo.posted] == [first, demo.shown()]


def test_it_says_what_the_guarantee_allows(demo: Demo) -> None:
    """For epsilon 1: a factor of e = 2.72, and e / (1 + e) = 73% where it was 50%."""
    demo.says("#proof", "at least 1/2.72 of the probability")
    demo.says("#proof", "at most 73% sure")


@pytest.mark.parametrize(
    "demo", ["Object.defineProperty(navigator, 'globalPrivacyControl', { value: true });"], indirect=True
)
def test_browsers_that_ask_for_it_send_nothing(demo: Demo) -> None:
    demo.says("#outcome", "Global Privacy Control): this page sends nothing.")
    demo.page.click("label:has-text('migraine')")
    demo.says("#ticked", "1 ticked.")
    assert demo.page.is_disabled("#report")
    demo.page.evaluate("document.getElementById('answers').requestSubmit()")
    demo.page.reload()
    demo.says("#outcome", "this page sends nothing.")
    assert (demo.posted, demo.reports) == ([], 0)


def test_the_crowd_s_estimates_are_on_the_page(demo: Demo, tmp_path: Path) -> None:
    """Four in ten look up sleep; a key stands out from 16% on, five standard errors below: false alarms 2e-7."""
    token = demo.service.tokens.new("upload")
    with Uploader(demo.address, TASK, token, tmp_path / "spool", batch=20_000) as uploader:
        uploader.add(demo_reports(TASK, 20_000, seed=1).tobytes())
        assert uploader.flush()
    eventually(lambda: not demo.service.overview(TASK)["withheld"])
    demo.says("#keys", "sleep")
