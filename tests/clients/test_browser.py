"""The JavaScript client in Chromium: pages of another origin, tabs that race, and tabs that are closed in the middle.

HUBBUB_ROUNDS=50 closes that many tabs instead of 8.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browsing import chromium
from collecting import Collector, collecting, eventually

from helpers import QuietServer
from hubbub.collect.dashboard.pages import FILES
from hubbub.collect.mixer import Mixer
from hubbub.collect.serving import serving
from hubbub.collect.settings import Settings
from hubbub.collect.shuffler import Shuffler, create_shuffler_app
from hubbub.primitives.envelope import unseal
from hubbub.protocol.task import Task

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROUNDS = int(os.environ.get("HUBBUB_ROUNDS", "8"))
KEYS = ["search", "share", "print", "export", *(f"menu-{i}" for i in range(12))]
#: Set by every page before anything else.
HELPERS = """
globalThis.hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
"""


def task(name: str, **rules: Any) -> Task:
    keys = {"kind": "closed", "vocabulary": KEYS, "salt": "0123456789abcdef" * 2}
    mechanism = {"name": "sketch_response", "epsilon": 4.0, "max_entries": 2, "values": "set"}
    return Task.parse({"name": name, "keys": keys, "mechanism": mechanism, **rules})


ONCE, DAILY = task("features"), task("daily", period="day")


class Site:
    """A site with one page that has the client's script, under a strict policy; it also takes uploads, slowly."""

    def __init__(self) -> None:
        self.address = ""
        self.policy = ""
        self.patience = 0.0
        self.bodies: dict[str, bytes] = {}


@contextmanager
def site() -> Iterator[Site]:
    served = Site()
    pages = {
        "/": (b"<!doctype html><link rel=icon href=data:,><script src=/hubbub.js></script>", "text/html"),
        "/hubbub.js": (FILES["vendor/hubbub.min.js"].data, "text/javascript"),
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(*pages[self.path])

        def do_POST(self) -> None:
            batch = self.headers["Hubbub-Batch"]
            served.bodies[batch] = self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(served.patience)
            self.answer(json.dumps({"batch": batch, "accepted": 1}).encode(), "application/json")

        def answer(self, body: bytes, media: str) -> None:
            self.send_response(200)
            self.send_header("Content-Security-Policy", served.policy)
            self.send_header("Content-Type", media)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = QuietServer(("127.0.0.1", 0), Handler)
    served.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def app() -> Iterator[Site]:
    with site() as served:
        yield served


@pytest.fixture
def collector(tmp_path: Path, app: Site) -> Iterator[Collector]:
    """One that pages of the site may report to, without a token."""
    limits = {"report_origins": (app.address,), "public_reports": 100_000}
    with collecting(f"sqlite:///{tmp_path}/s.db", ONCE, DAILY, **limits) as made:
        yield made


class Visitor:
    """Somebody with a browser of their own."""

    def __init__(self, browser: Browser, app: Site, *services: str, script: str = "") -> None:
        app.policy = (
            f"default-src 'none'; img-src data:; script-src 'self'; connect-src 'self' {' '.join(services)}"
        )
        self.context = browser.new_context()
        self.context.set_default_timeout(60_000)
        self.context.add_init_script(HELPERS + script)
        self.address, self.complaints = f"{app.address}/", list[str]()

    def tab(self) -> Page:
        page = self.context.new_page()
        page.on("console", lambda said: self.complaints.append(said.text))
        page.on("pageerror", lambda problem: self.complaints.append(str(problem)))
        page.goto(self.address)
        return page

    def __enter__(self) -> Visitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


def task_address(collector: Collector, chosen: Task) -> str:
    return f"{collector.address}/v1/tasks/{chosen.digest.hex()}/device"


def kept(collector: Collector, chosen: Task) -> Counter[str]:
    """All reports that a collector has, as hexadecimal digits."""
    width = chosen.mechanism.layout.width
    found: Counter[str] = Counter()
    for _, _, payload, _ in collector.service.store.kept(chosen.digest.hex()):
        found.update(payload[start : start + width].hex() for start in range(0, len(payload), width))
    return found


# Another origin

VISITORS = """async ([address, task, visitors]) => {
  const collected = await hubbub.Task.fetch(task);
  const uploader = new hubbub.Uploader(address, collected);
  const reports = new Uint8Array(visitors.length * collected.reportBytes);
  visitors.forEach((record, i) => {
    reports.set(new hubbub.Client(collected).report(record), i * collected.reportBytes);
  });
  await uploader.add(reports);
  const sent = await uploader.flush();
  uploader.close();
  return [sent, uploader.trouble];
}"""


def test_visitors_of_another_origin_are_counted(browser: Browser, app: Site, collector: Collector) -> None:
    """Two thousand, and no key is off by more than 5.4 standard errors; false alarms: 16 keys at 7e-8 are 1e-6.

    Were the estimate of the most frequent key 30% off, it would be noticed: that is more.
    """
    draw = random.Random(7)
    often = draw.choices([["search"], ["print"], []], [17, 2, 1], k=2000)
    records = [[*common, *draw.sample(KEYS[3:], 1)] for common in often]
    with Visitor(browser, app, collector.address) as visitor:
        sent = visitor.tab().evaluate(VISITORS, [collector.address, task_address(collector, ONCE), records])
        assert (sent, visitor.complaints) == ([True, ""], [])
    found = collector.get(f"/v1/tasks/{ONCE.digest.hex()}/estimates?top=100").json
    assert found["reports"] == 2000
    rows = {row["key"]: row for row in found["estimates"]}
    assert sorted(rows) == sorted(KEYS)
    truth = Counter(key for record in records for key in record)
    for key, row in rows.items():
        assert abs(row["value"] - truth[key] / 2000) < 5.4 * row["error"], key
    assert 0.3 * truth["search"] / 2000 > 5.4 * rows["search"]["error"]


def test_a_page_of_an_origin_that_is_not_allowed_is_refused(
    browser: Browser, app: Site, collector: Collector, tmp_path: Path
) -> None:
    """It cannot fetch the task, and one that it brings along cannot be reported: nothing arrives, all is kept."""
    text = collector.get(f"/v1/tasks/{ONCE.digest.hex()}/device").body.decode()
    limits = {"report_origins": ("https://other.example",), "public_reports": 100}
    with (
        collecting(f"sqlite:///{tmp_path}/closed.db", ONCE, **limits) as closed,
        Visitor(browser, app, closed.address) as visitor,
    ):
        page = visitor.tab()
        said = page.evaluate(
            "task => hubbub.Task.fetch(task).catch((problem) => [problem.name, problem.message])",
            task_address(closed, ONCE),
        )
        assert said[0] == "Refused"
        assert "cannot be fetched" in said[1]
        outcome = page.evaluate(
            """async ([address, text]) => {
              const collected = await hubbub.Task.parse(new TextEncoder().encode(text));
              const uploader = new hubbub.Uploader(address, collected);
              await uploader.report(["search"]);
              const sent = await uploader.flush(0);
              uploader.close();
              return [sent, uploader.trouble, await uploader.waiting()];
            }""",
            [closed.address, text],
        )
        assert outcome[::2] == [False, 1]
        assert "cannot be reached" in outcome[1]
        assert closed.reports == 0
        assert visitor.complaints
        for complaint in visitor.complaints:  # the browser's own words about the refusal, and nothing else
            assert "CORS policy" in complaint or "ERR_FAILED" in complaint, complaint


def test_a_shuffler_takes_what_pages_seal(
    browser: Browser, app: Site, collector: Collector, tmp_path: Path
) -> None:
    token = collector.service.tokens.new("shuffler")
    mixing = Shuffler(Mixer(tmp_path / "m.db"), [ONCE, DAILY], collector.address, token, "up", crowd=6)
    settings = Settings(report_origins=(app.address,), public_reports=100)
    with (
        serving(create_shuffler_app(mixing, settings)) as shuffler,
        Visitor(browser, app, collector.address, shuffler) as visitor,
    ):
        sent = visitor.tab().evaluate(
            """async ([shuffler, task, key]) => {
              const collected = await hubbub.Task.fetch(task);
              const { key: digits } = await (await fetch(key)).json();
              const sealedFor = Uint8Array.from(digits.match(/../g), (two) => Number.parseInt(two, 16));
              const all = [];
              for (let person = 0; person < 6; person++) {
                const store = hubbub.browserStore(`person ${person}`);
                const uploader = new hubbub.Uploader(shuffler, collected, { sealedFor, store });
                all.push(await uploader.report(["search"]), await uploader.report(["search"]), await uploader.flush());
                uploader.close();
              }
              return all;
            }""",
            [shuffler, task_address(collector, DAILY), f"{collector.address}/v1/key"],
        )
        assert sent == [True, False, True] * 6
        eventually(lambda: sum(kept(collector, DAILY).values()) == 6)
        assert visitor.complaints == []


# Tabs

OPEN = """async ([address, task]) => {
  globalThis.collected = await hubbub.Task.fetch(task);
  globalThis.ledger = new hubbub.Ledger();
}"""


def end(page: Page, killed: bool) -> None:
    """Close a tab, or kill the process that it runs in first."""
    from playwright.sync_api import Error

    if killed:
        with contextlib.suppress(Error):  # nobody is left to answer
            page.goto("chrome://crash", timeout=5000)
    page.close()


def test_tabs_at_once_make_one_report(browser: Browser, app: Site, collector: Collector) -> None:
    """Three, for many days: all at once, and one after another, when each day's turn is somebody else's.

    With the ledger in localStorage under a Web Lock, 41 of 900 days had two reports or three.
    """
    at_once = "Promise.all(Array.from({ length: 20 }, (_, day) => report(day)))"
    in_turn = """(async () => {
      const all = [];
      for (let day = 20; day < 60; day++) all.push(await report(day));
      return all;
    })()"""
    with Visitor(browser, app, collector.address) as visitor:
        tabs = [visitor.tab() for _ in range(3)]
        for race in (at_once, in_turn):
            for tab in tabs:
                tab.evaluate(OPEN, ["", task_address(collector, DAILY)])
                tab.evaluate(
                    """() => {
                  globalThis.report = (day) =>
                    ledger.report(collected, ["search"], new Date(2026, 0, day + 1)).then(hex);
                  const channel = new BroadcastChannel("start");
                  globalThis.ended = new Promise((done) => { channel.onmessage = () => done(RACE); });
                  globalThis.start = () => { channel.postMessage(0); channel.onmessage(); };
                }""".replace("RACE", race)
                )
            tabs[0].evaluate("start()")
            first, *others = (tab.evaluate("ended") for tab in tabs)
            assert others == [first, first]
        assert tabs[0].evaluate("ledger.spent(collected)") == 60 * DAILY.guarantee.epsilon
        assert tabs[0].evaluate("localStorage.length") == 0
        assert visitor.complaints == []


def test_a_tab_that_is_closed_while_it_reports(browser: Browser, app: Site, collector: Collector) -> None:
    """What it told is what the ledger has, and the ledger has no more than one report a day."""
    draw, told = random.Random(1), dict[int, list[str]]()
    with Visitor(browser, app, collector.address) as visitor:
        visitor.context.expose_function("tell", lambda day, report: told.setdefault(day, []).append(report))
        witness = visitor.tab()
        witness.evaluate(OPEN, ["", task_address(collector, DAILY)])
        for day in range(1, ROUNDS + 1):
            tab = visitor.tab()
            tab.evaluate(OPEN, ["", task_address(collector, DAILY)])
            tab.evaluate(
                """(day) => {
                  for (let i = 0; i < 3; i++) {
                    ledger.report(collected, ["search"], new Date(2026, 0, day)).then((made) => tell(day, hex(made)));
                  }
                }""",
                day,
            )
            tab.wait_for_timeout(draw.uniform(0, 12))
            end(tab, killed=day % 2 == 0)
            last = witness.evaluate(
                'day => ledger.report(collected, ["print"], new Date(2026, 0, day)).then(hex)', day
            )
            assert set(told.get(day, [last])) == {last}
        assert witness.evaluate("ledger.spent(collected)") == ROUNDS * DAILY.guarantee.epsilon
        assert visitor.complaints == []


def test_a_tab_that_is_closed_while_it_uploads(browser: Browser, app: Site, collector: Collector) -> None:
    """Whatever was spent arrives once: at the end, the collector has the very reports of the ledger, each once."""
    draw = random.Random(2)
    make = "day => uploader.report(['search'], new Date(2026, 0, day))"
    with Visitor(browser, app, collector.address) as visitor:

        def tab() -> Page:
            opened = visitor.tab()
            opened.evaluate(OPEN, ["", task_address(collector, DAILY)])
            opened.evaluate(
                "url => { globalThis.uploader = new hubbub.Uploader(url, collected) }", collector.address
            )
            return opened

        for day in range(1, ROUNDS + 1):
            page = tab()
            page.evaluate(f"day => void ({make})(day)", day)
            page.wait_for_timeout(draw.uniform(0, 25))
            end(page, killed=day % 2 == 0)
        witness = tab()
        for day in range(1, ROUNDS + 1):  # those that were closed before they had spent anything
            witness.evaluate(make, day)
        assert witness.evaluate("uploader.flush()")
        assert witness.evaluate("uploader.waiting()") == 0
        reports = [
            witness.evaluate(
                "day => uploader.ledger.report(collected, [], new Date(2026, 0, day)).then(hex)", day
            )
            for day in range(1, ROUNDS + 1)
        ]
        assert kept(collector, DAILY) == Counter(reports)
        assert visitor.complaints == []


def test_a_page_that_goes_sends_the_rest(browser: Browser, app: Site, collector: Collector) -> None:
    """While the first batch is under way, which takes its time, the page is left: the others arrive nonetheless."""
    with Visitor(browser, app, collector.address) as visitor:
        page = visitor.tab()
        page.evaluate(OPEN, ["", task_address(collector, ONCE)])
        app.bodies, app.patience = {}, 1.0
        reports = page.evaluate(
            """async (address) => {
              const uploader = new hubbub.Uploader(address, collected, { batch: 1 });
              const made = Array.from({ length: 4 }, () => new hubbub.Client(collected).report(["search"]));
              await uploader.add(new Uint8Array(made.flatMap((report) => [...report])));
              return made.map(hex);
            }""",
            app.address,
        )
        page.goto("about:blank")
        eventually(lambda: len(app.bodies) == 4)
        arrived = [bytes(unseal(body, kind=b"R").payload).hex() for body in app.bodies.values()]
        assert sorted(arrived) == sorted(reports)
        app.patience = 0.0
        # The answers were for a page that is gone, so the next one sends the same batches again.
        before = dict(app.bodies)
        page = visitor.tab()
        page.evaluate(OPEN, ["", task_address(collector, ONCE)])
        assert page.evaluate(
            """async (address) => {
              const uploader = new hubbub.Uploader(address, collected);
              return [await uploader.flush(), await uploader.waiting()];
            }""",
            app.address,
        ) == [True, 0]
        assert app.bodies == before


# Storage that cannot be used

#: What is done to a page's storage.
BROKEN = {
    "may not be opened": "indexedDB.open = () => { throw new DOMException('not here', 'SecurityError'); };",
    "is of a later version": """
      const later = indexedDB.open("hubbub", 2);
      later.onsuccess = () => later.result.close();
    """,
    "is full": "",
    "is not there": """
      Object.defineProperty(globalThis, "indexedDB", { value: undefined });
    """,
}


WORDS = {
    "may not be opened": "cannot be used (not here)",
    "is of a later version": "cannot be used (",
    "is full": "is full; nothing was changed: make room and try again.",
    "is not there": "Nothing can be kept safely here: there is no IndexedDB",
}


@pytest.mark.parametrize("how", BROKEN)
def test_storage_that_cannot_be_used_is_said(
    browser: Browser, app: Site, collector: Collector, how: str
) -> None:
    """Nothing is reported, neither by the ledger nor by the uploader."""
    with Visitor(browser, app, collector.address, script=BROKEN[how]) as visitor:
        page = visitor.tab()
        if how == "is full":
            quota = {"origin": app.address, "quotaSize": 1}
            visitor.context.new_cdp_session(page).send("Storage.overrideQuotaForOrigin", quota)
        said = page.evaluate(
            """async ([address, task]) => {
              const collected = await hubbub.Task.fetch(task);
              const attempts = [
                async () => new hubbub.Ledger().report(collected, ["search"]),
                async () => new hubbub.Uploader(address, collected).report(["search"]),
              ];
              const problems = [];
              for (const attempt of attempts) {
                await attempt().then(
                  (made) => problems.push(["reported", String(made)]),
                  (problem) => problems.push([problem.name, problem.message]),
                );
              }
              return problems;
            }""",
            [collector.address, task_address(collector, ONCE)],
        )
        assert [name for name, _ in said] == ["Refused", "Refused"], said
        assert all(WORDS[how] in message for _, message in said), said
        assert collector.reports == 0
        assert visitor.complaints == []


def test_a_store_that_is_no_ledger_stays_as_it_is(browser: Browser, app: Site, collector: Collector) -> None:
    with Visitor(browser, app, collector.address) as visitor:
        said = visitor.tab().evaluate(
            """async (task) => {
              const collected = await hubbub.Task.fetch(task);
              const store = hubbub.browserStore();
              const ledger = new hubbub.Ledger(store);
              const report = hex(await ledger.report(collected, ["search"]));
              const good = await store.read();
              const problems = [];
              for (const text of ["", "{", "[]", good.slice(0, -3), good.replace(report, "00")]) {
                await store.change(() => ({ keep: text, result: 0 }));
                await ledger.report(collected, ["search"]).catch((problem) => problems.push(problem.message));
                if ((await store.read()) !== text) problems.push("changed");
              }
              await store.change(() => ({ keep: good, result: 0 }));
              return [problems, hex(await ledger.report(collected, ["search"])) === report];
            }""",
            task_address(collector, ONCE),
        )
        sentence = (
            'the browser\'s database "hubbub" is not a ledger; nothing is reported while it cannot be read.'
        )
        assert said == [[sentence] * 5, True]
