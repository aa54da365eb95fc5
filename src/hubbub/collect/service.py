"""What can be read: tasks and guarantees, estimates, counts over time. Routes and pages only ask here."""

from __future__ import annotations

import datetime
import logging
import threading
import time
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request

from hubbub.collect.clock import Clock
from hubbub.collect.groups import Groups
from hubbub.collect.health import Health
from hubbub.collect.keyring import KeyRing
from hubbub.collect.lifetimes import check_retention, merge_old
from hubbub.collect.metrics import Metrics
from hubbub.collect.mint import Mint
from hubbub.collect.new_keys import Finder
from hubbub.collect.noticing import Noticing
from hubbub.collect.parts import unfinished_crowds
from hubbub.collect.promises import Promises
from hubbub.collect.remembered import Remembered
from hubbub.collect.segments import Damaged
from hubbub.collect.settings import Settings
from hubbub.collect.snapshots import Current, Folder, loaded, sealed
from hubbub.collect.store import Store, Unavailable
from hubbub.collect.sums import Sums
from hubbub.collect.tokens import COOKIE, Grant, Tokens
from hubbub.collect.workers import Worker
from hubbub.collect.writing import Arrival, Written, write_together
from hubbub.device.client import Client
from hubbub.model.mechanism import Quantity
from hubbub.model.state import State
from hubbub.plan.advice import advised, largest_seen
from hubbub.primitives.errors import Refused
from hubbub.privacy.over_time import spending
from hubbub.protocol.device_document import device_document
from hubbub.protocol.strata import Stratum
from hubbub.protocol.task import Task
from hubbub.server.comparison import Comparison
from hubbub.server.estimates import Estimate, estimate
from hubbub.server.fold import aggregate
from hubbub.server.portions import Choice

_log = logging.getLogger("hubbub.api")

#: Estimates of all keys that are remembered while no new report arrives.
_REMEMBERED = 8
#: Answers about ended periods that are remembered.
_PAST_REMEMBERED = 5000
#: Periods in an answer.
_MOST_PERIODS = 1000
#: Seconds that the first look at the store's pages may take; later ones may take as long as they need.
_FIRST_LOOK = 10.0
#: Bytes of a state that is made only to have been made once.
_SMALL_STATE = 1 << 26
#: Seconds between two looks for strata that are old, or have grown.
_TIDY = 60.0
_EVERYBODY = Choice()
#: Seconds for which an upload that could not be written is held against the service.
_MEMORY = 10.0
#: What the planner says: in words, and what long records would need.
Advice = tuple[str, int | None, int | None]


class Withheld(Refused):
    """Too few reports have arrived for estimates."""


class Service:
    """The tasks of one process, over one store."""

    def __init__(self, store: Store, tasks: Sequence[Task], settings: Settings) -> None:
        self.store, self.settings, self.metrics = store, settings, Metrics()
        self.by_digest = {task.digest.hex(): task for task in tasks}
        if len(self.by_digest) < len(tasks):
            raise Refused("A task is named twice.")
        for task in tasks:
            check_retention(task, settings.retention)
        try:
            store.look_closely(_FIRST_LOOK)
        except Unavailable as problem:
            raise Refused(f"The store cannot be used: {problem}.") from None
        # Pages ask every two seconds, and a vocabulary may have a million keys.
        self._texts = {digest: task.to_toml() for digest, task in self.by_digest.items()}
        self.tokens = Tokens(store)
        self.folder = Folder(store, list(tasks), self.metrics)
        self.sums, self.clock = Sums(store), Clock(store)
        self.finder = Finder(self._readable)
        self.keys = KeyRing(store)
        self.writer: Groups[Arrival, Written] = Groups(
            lambda arrivals: write_together(store, arrivals),
            lambda arrival: len(arrival.reports),
            settings.queue,
            settings.patience,
        )
        self.workers = [
            Worker("tokens", self._learn_tokens, (Unavailable,)),
            Worker("fold", lambda: self.folder.round(settings.fold_every), (Unavailable,)),
            Worker("strata", self._tidy, (Unavailable,)),
            Worker("check", self._look_closely, (Unavailable,)),
            Worker("warm-up", self._warm_up, (Unavailable,)),
        ]
        #: Crowds that wait for their last parts, and the bytes that they take, a moment ago.
        self.unfinished = unfinished_crowds(store)
        self.promises = Promises(store)
        self.noticing = Noticing(store)
        self.mint = Mint(store)
        self._closing = False
        self.health = Health(self.workers, self._troubles)
        self._documents: dict[str, bytes] = {}
        self._answers: Remembered[tuple[object, ...], Estimate] = Remembered(_REMEMBERED)
        self._past: Remembered[tuple[object, ...], list[dict[str, Any]]] = Remembered(_PAST_REMEMBERED)
        self._advice: Remembered[tuple[object, ...], Advice] = Remembered(_PAST_REMEMBERED)
        #: What groups and periods are compared to, and points of trends (`hubbub.collect.trends`).
        self.comparisons: Remembered[tuple[object, ...], Comparison] = Remembered(_REMEMBERED)
        self.points: Remembered[tuple[object, ...], tuple[Estimate, ...]] = Remembered(_PAST_REMEMBERED)

    def device_document(self, digest: str) -> bytes | None:
        """What devices in other languages are told of a task; None if there is no such task."""
        if digest in self.by_digest and digest not in self._documents:
            self._documents[digest] = device_document(self.by_digest[digest])
        return self._documents.get(digest)

    def start(self) -> None:
        """Begin to fold, and to look for new and revoked tokens, in the background."""
        for worker in self.workers:
            worker.start()

    def close(self) -> None:
        """Write what is queued, finish the fold under way, and give the store's connections back."""
        self._closing = True
        self.writer.stop()
        self.finder.stop()
        self.folder.stop()
        for worker in self.workers:
            worker.stop()
        self.keys.close()
        self.store.close()

    def _learn_tokens(self) -> float:
        self.tokens.refresh()
        self.keys.refresh()
        self.unfinished = unfinished_crowds(self.store)
        return 1.0

    def _tidy(self) -> float:
        """Merge old periods, and keep sums of strata to which much was added."""
        self.clock.look()
        for task in self.tasks():
            if not self._closing and (task.labels or task.period != "once"):
                merge_old(self.store, self.sums, task, self.settings.retention, self.clock.days()[0])
                self.sums.keep_up(task, lambda: self._closing)
        return _TIDY

    def _look_closely(self) -> float:
        self.store.look_closely(stopped=lambda: self._closing)
        return self.settings.check_every

    def _warm_up(self) -> float:
        """Do once what the first reader would wait for: snapshots are loaded, code is compiled, guarantees computed.

        Without reports enough for estimates, those of one report that says nothing are made, and not shown.
        """
        for task in self.tasks():
            if self._closing:
                break
            try:
                self.overview(task)
                self.estimates(task, None if task.keys.kind == "closed" else [task.keys.example])
            except Damaged:
                continue  # the folder says so
            except Withheld:
                if len(task.mechanism.empty(task.keys).to_bytes()) <= _SMALL_STATE:
                    alike = task.model_copy(
                        update={"minimum_reports": 0, "messages": 0.0, "seed_from": "device"}
                    )
                    blank = aggregate(alike, Client(alike).report({}))
                    estimate(alike, blank, [task.keys.example])
        return threading.TIMEOUT_MAX

    def _troubles(self) -> list[str]:
        """What keeps uploads from being written."""
        try:
            self.store.ping()
        except Exception as problem:
            _log.error("the store cannot be written: %s", problem)
            return ["the store cannot be written"]
        failed = self.writer.failed
        if not self.writer.alive:
            return ["uploads: the thread has ended"]
        lately = failed is not None and time.monotonic() < failed + _MEMORY
        found = ["the last upload could not be written"] if lately else []
        if len(self.folder.damaged) == len(self.by_digest):  # of several, the others go on
            found += ["every task is damaged"]
        return found

    def tasks(self, grant: Grant | None = None) -> list[Task]:
        """Everything that is collected, or what of it somebody may know of."""
        return [task for digest, task in self.by_digest.items() if grant is None or grant.covers(digest)]

    def grant_of(self, request: Request) -> Grant | None:
        """What is allowed to whoever asks, by bearer token or by session cookie."""
        given = request.headers.get("authorization", "")
        if given[:7].lower() == "bearer ":
            return self.tokens.grant_of(given[7:])
        cookie = request.cookies.get(COOKIE)
        return self.tokens.session_grant(cookie) if cookie else None

    def overviews(self, grant: Grant | None = None) -> list[dict[str, Any]]:
        """What somebody may know of; of a task that is damaged, what is wrong with it."""
        rows = []
        for task in self.tasks(grant):
            try:
                rows.append(self.overview(task))
            except Damaged as problem:
                rows.append({"name": task.name, "digest": task.digest.hex(), "damaged": str(problem)})
        return rows

    def overview(self, task: Task) -> dict[str, Any]:
        """What a task is, what has arrived, and what is promised to whom."""
        digest = task.digest.hex()
        current = self.folder.fold(task)
        shown = current.state.count
        withheld = shown < max(task.minimum_reports, 1)
        return {
            "name": task.name,
            "digest": digest,
            "toml": self._texts[digest],
            "keys": {
                "kind": task.keys.kind,
                "count": task.keys.count if task.keys.kind == "closed" else None,
            },
            "quantities": list(task.mechanism.quantities),
            "report_bytes": task.mechanism.layout.width,
            "precision": task.precision,
            "messages": task.messages,
            "reports": self.store.arrived(digest),
            "in_estimates": shown,
            "minimum": max(task.minimum_reports, 1),
            "withheld": withheld,
            "notice": None if withheld else self.noticing.of(task, current),
            "rejected": self.store.rejected(digest),
            "per_period": spending(task),
            **self.promises.of(task),
        }

    def estimates(
        self,
        task: Task,
        keys: Sequence[str] | None = None,
        top: int | None = 20,
        level: float = 0.95,
        quantity: Quantity | None = None,
        simultaneous: bool = False,
        *,
        correct: bool = False,
        choice: Choice = _EVERYBODY,
    ) -> Estimate:
        """Estimates of the asked keys, or of those that stand out most (top None: of all), for everybody or some."""
        current = self._readable(task)
        state = current.state
        mark: tuple[object, ...] = (current.head.version,)
        if not choice.everything:
            there = self.sums.strata(task)
            chosen = choice.of(task, there)
            state, mark = self.portion(task, chosen), tuple(there[each] for each in chosen)

        def ask(keys: Sequence[str] | None) -> Estimate:
            return self._advised(
                task, estimate(task, state, keys, quantity, level, simultaneous, correct=correct)
            )

        if keys is not None:
            return ask(list(keys))
        asked = (task.digest, mark, level, quantity, simultaneous, correct)
        known = self._answers.get(asked, lambda: ask(None))
        return known if top is None else known.top(top)

    def _advised(self, task: Task, found: Estimate) -> Estimate:
        """With the planner's advice, which takes a moment and is remembered until the numbers are clearly others."""
        findings, truncation = found.findings, found.truncation
        lost = truncation is not None and truncation.alarming
        if not (findings.nothing or lost):
            return found
        loss = (round(truncation.longer, 2), round(truncation.lost, 2)) if truncation and lost else None
        largest = largest_seen(task, found) if lost else None
        facts = (findings.candidates, findings.nothing, f"{found.reports:.1e}", loss, f"{largest or 0:.1f}")

        def ask() -> Advice:
            new = advised(task, found)
            plan = new.truncation
            return new.findings.advice, plan.suggested if plan else None, plan.outstanding if plan else None

        known = self._advice.get((task.digest, found.quantity, found.level, *facts), ask)
        findings = replace(findings, advice=known[0])
        if truncation:
            truncation = replace(truncation, suggested=known[1], outstanding=known[2])
        return replace(found, findings=findings, truncation=truncation)

    def _readable(self, task: Task) -> Current:
        """The newest snapshot, refused while it has too few reports for estimates."""
        current = self.folder.fold(task)
        if current.state.count < max(task.minimum_reports, 1):
            arrived = self.store.arrived(task.digest.hex())
            raise Withheld(
                f"{arrived} reports have arrived; estimates are withheld below {max(task.minimum_reports, 1)}."
            )
        return current

    def portion(self, task: Task, strata: Collection[Stratum]) -> State:
        """The state of some strata, refused while they have too few reports for estimates."""
        state = self.sums.state(task, strata)
        self.check_enough(task, state.count)
        return state

    def check_enough(self, task: Task, reports: int) -> None:
        """Refuse estimates of a group with so few reports."""
        least = max(task.minimum_reports, 1)
        if reports < least:
            raise Withheld(
                f"{reports} reports of this group are counted; estimates are withheld below {least}."
            )

    def history(
        self, task: Task, keys: Sequence[str] = (), level: float = 0.95, quantity: Quantity | None = None
    ) -> dict[str, Any]:
        """Reports by period, and for asked keys the estimates at the end of periods.

        Ended periods have the state of their end; the last point is the present.
        """
        current, digest = self.folder.fold(task), task.digest.hex()
        periods = self.store.periods(digest, _MOST_PERIODS)
        total = current.state.count - sum(reports for _, reports in periods)
        rows = []
        for period, reports in periods:
            total += reports
            rows.append({"period": _time(period), "reports": reports, "total": total})
        points: dict[str, list[dict[str, Any]]] = {key: [] for key in keys}
        answer: dict[str, Any] = {"task": digest, "precision": task.precision, "periods": rows}
        if not keys:
            return answer
        now = self.estimates(task, list(points), level=level, quantity=quantity)
        for period in self.store.past(digest):
            past = self._at_end_of(task, period, tuple(points), level, quantity, current.state)
            for row in past:
                points[row["key"]].append({"period": _time(period), **row})
        for row in now.rows():
            points[row["key"]].append({"period": _time(current.head.period or 0), **row})
        return {**answer, **now.about(), "estimates": points}

    def _at_end_of(
        self,
        task: Task,
        period: int,
        keys: tuple[str, ...],
        level: float,
        quantity: Quantity | None,
        now: State,
    ) -> list[dict[str, Any]]:
        """Estimates at the end of a period, remembered: they do not change any more."""

        def ask() -> list[dict[str, Any]]:
            packed = self.store.past_state(task.digest.hex(), period)
            state = None if packed is None else _unpacked(task, period, packed, now)
            if state is None or state.count < max(task.minimum_reports, 1):
                return []
            return estimate(task, state, keys, quantity, level).rows()

        return self._past.get((task.digest, period, keys, level, quantity), ask)

    def state_file(self, task: Task) -> Iterator[bytes | memoryview]:
        """The state as a file that hubbub estimate and hubbub merge read, piece by piece; strata are apart in it."""
        state = self._readable(task).state
        if self.store.shelves(task.digest.hex()):
            return self.sums.file(task)
        return iter([sealed(task, state, task.canonical)])


def _unpacked(task: Task, period: int, packed: bytes, now: State) -> State:
    """A past state; one that is damaged is a missing point of a chart, no reason to show nothing."""
    nothing = task.mechanism.empty(task.keys)
    try:
        state = loaded(nothing, zlib.decompress(packed))
        missing = nothing.reports.shape[1] > 0 and not len(state.reports)
        return replace(state, reports=now.reports[: state.count]) if missing else state
    except (zlib.error, Refused) as problem:
        _log.error("the state of task %s at %s is damaged: %s", task.digest.hex(), _time(period), problem)
        return nothing


def _time(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
