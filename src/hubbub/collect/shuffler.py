"""The shuffler: takes sealed reports, waits for a crowd, mixes it and passes it on.

What it promises, and what the guarantee of the shuffled model rests on (docs/shuffler.md):

- It cannot read. Items are sealed for the collector (`hubbub.protocol.sealing`); no private key is here.
- It keeps items only: no sender, no address, no time, no batch of origin. They are stored in random places, so that
  not even the order in which they came is on disk, nor which of them came together (`hubbub.collect.staging`).
- It takes items only for keys that the collector has (`hubbub.collect.known_keys`); others would wait for ever.
- A crowd leaves when at least `crowd` items of one period and for one key wait, never before and not at shutdown, as
  one batch in an order drawn from the operating system's generator, every order being equally likely. No crowd holds
  items of two periods, so no person has more reports in it than the task's `reports_per_period`, or for two keys,
  which the collector could tell apart.
- Nothing is passed on twice. A crowd is put into its order, named and stored in one transaction before it is sent, so
  that whoever has to send it again sends the very same batch, which the collector counts once. Digests of items that
  have left stay: an item that comes again, because a device asked its ledger again or retried, or because
  somebody recorded it, is dropped. They stay until the period is over, and from then on nothing of it is taken.
- Nothing acknowledged is lost while its period lasts: items are on disk before they are acknowledged. When a period
  is over (`hubbub.protocol.periods`), the items of it that never made a crowd are dropped.
"""

from __future__ import annotations

import datetime
import http.client
import logging
import sqlite3
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hubbub.collect.health import Health
from hubbub.collect.intake import check_messages
from hubbub.collect.known_keys import KnownKeys, Unanswered
from hubbub.collect.metrics import MEDIA, by_task, series, single, worker_lines
from hubbub.collect.mixer import Crowd, Mixer
from hubbub.collect.origins import CrossOrigin
from hubbub.collect.problems import Problem, busy
from hubbub.collect.relay import Relay
from hubbub.collect.settings import Settings
from hubbub.collect.workers import Worker
from hubbub.primitives.errors import Refused
from hubbub.protocol.delivery import Answer, connect, post, service_address
from hubbub.protocol.periods import open_periods
from hubbub.protocol.sealing import KEY_BYTES, NO_KEY, label_width, sealed_width
from hubbub.protocol.task import Task

_log = logging.getLogger("hubbub.shuffler")

#: Bytes of crowds that may wait for a collector that does not answer, before devices are told to wait.
MOST_OUTGOING = 1 << 30
#: Bytes of items that may wait for their crowds, before devices are told to wait.
MOST_WAITING = 1 << 30
#: Bytes of refused crowds that are kept, in case the collector comes up with the right key; beyond, the oldest go.
MOST_REFUSED = 1 << 28
#: Seconds between attempts to reach the collector: doubled from the first to the second.
PATIENCE = (0.25, 30.0)
#: Seconds after which somebody looks for periods that are over, if no crowd gets complete.
_TIDY = 3600.0
#: Seconds until the collector is asked again for its keys: after an answer, and after none.
_KEYS_LAST, _ASK_AGAIN = 300.0, 5.0


def today() -> datetime.date:
    """The day, by Greenwich's calendar."""
    return datetime.datetime.now(datetime.UTC).date()


class Shuffler:
    """Tasks, their crowds, and a thread that passes crowds on to the collector."""

    def __init__(
        self,
        mixer: Mixer,
        tasks: Sequence[Task],
        collector: str,
        token: str,
        upload_tokens: str | Sequence[str],
        crowd: int,
    ) -> None:
        """`token` is for the collector; devices show one of `upload_tokens`."""
        if crowd < 2:
            raise Refused(f"A crowd has at least 2 reports, not {crowd}.")
        check_messages(tasks)
        self.mixer, self.tasks = mixer, {task.digest.hex(): task for task in tasks}
        self.upload_tokens = [upload_tokens] if isinstance(upload_tokens, str) else list(upload_tokens)
        self._collector, self._token, self._crowd = service_address(collector), token, crowd
        limits = Settings()
        for task in tasks:
            most = min(limits.largest_body // sealed_width(task), limits.most_reports)
            if self.least(task) > most:
                raise Refused(
                    f"Crowds of task {task.name!r} would have {self.least(task):,} reports, and a collector takes "
                    f"{most:,} at a time: lower --crowd, or the task's minimum_reports."
                )
        self._set_aside: dict[str, int] = {}
        self._open: dict[bytes, set[bytes]] = {}
        self._pause = PATIENCE[0]
        self._behind = False
        self.keys = KnownKeys(mixer, self._collector)
        self.worker = Worker("forward", self._round, (sqlite3.Error, OSError))
        self.workers = [self.worker, Worker("keys", self._learn_keys, (sqlite3.Error,))]
        self.health = Health(self.workers, self._troubles)
        self._counts: Counter[str] = Counter()
        self._counting = threading.Lock()

    def least(self, task: Task) -> int:
        """The size below which a crowd of this task never leaves."""
        return max(task.minimum_reports, self._crowd)

    def _least_of(self, crowd: Crowd) -> int:
        task = self.tasks.get(crowd.task.hex())
        return crowd.reports if task is None else self.least(task)

    def start(self) -> None:
        """Begin to ask for keys, and to pass crowds on, those of an earlier run first."""
        for worker in self.workers:
            worker.start()

    def stop(self) -> None:
        """End after the attempt that is under way; what waits keeps waiting on disk."""
        for worker in self.workers:
            worker.stop()
        self.mixer.close()

    def accept(self, task: Task, body: bytes) -> tuple[int, int]:
        """Keep the items of one request: see `accept_each`."""
        width = sealed_width(task)
        return self.accept_each([(task, [body[at : at + width] for at in range(0, len(body), width)])])[0]

    def accept_each(self, requests: Sequence[tuple[Task, Sequence[bytes]]]) -> list[tuple[int, int]]:
        """Keep the items of several requests: for each, how many are new, and how many were here before.

        The rest belongs to no period that is open, or to no key that the collector has.
        """
        if self.full():
            raise busy(503, "The collector does not answer and the store is full: send this again later.")
        taken: dict[int, tuple[int, int]] = {}
        for task in {task.digest: task for task, _ in requests}.values():
            label, current, keys = label_width(task), _labels(task), self.keys.names
            places = [place for place, (of, _) in enumerate(requests) if of.digest == task.digest]
            good = [
                [item for item in requests[place][1] if item[:label] in current and item[-KEY_BYTES:] in keys]
                for place in places
            ]
            taken.update(zip(places, self.mixer.add_each(task, good), strict=True))
            if self.mixer.waiting(task) >= self.least(task) and not self._behind:
                self.worker.wake()  # new items do not make a silent collector answer sooner
        fresh, repeated = (sum(counts) for counts in zip(*taken.values(), strict=True))
        sent = sum(len(items) for _, items in requests)
        self._count(accepted=fresh, repeated=repeated, refused=sent - fresh - repeated)
        return [taken[place] for place in range(len(requests))]

    def _learn_keys(self) -> float:
        """Ask for the collector's keys; the seconds until somebody should ask again."""
        try:
            self.keys.ask()
        except Unanswered as problem:  # it may be away for a while, which is no trouble of ours
            _log.warning("%s", problem)
            return _ASK_AGAIN
        return _KEYS_LAST

    def _round(self) -> float:
        """Pass on what can be; the seconds until somebody should look again."""
        delivered, asked = self.step()
        self._behind = not delivered
        if delivered:
            self._pause = PATIENCE[0]
            return _TIDY
        pause, self._pause = self._pause, min(2 * self._pause, PATIENCE[1])
        return max(pause, asked)

    def step(self) -> tuple[bool, float]:
        """End the periods that are over, close the crowds that are complete and send all that are closed.

        Whether all of them have left, and the seconds that the collector asks to wait if not.
        """
        for task in self.tasks.values():
            self._end_periods(task)
            if self.mixer.waiting(task) >= self.least(task):
                self.mixer.close_crowds(task, self.least(task))
        delivered, asked = True, 0.0
        for batch in [each for each in self.mixer.outgoing() if each not in self._set_aside]:
            crowd = self.mixer.crowd(batch)
            try:
                answer = self._post(crowd)
            except (OSError, http.client.HTTPException) as problem:
                _log.warning("the collector does not answer: %s", type(problem).__name__)
                return False, asked
            words = f"a crowd of {crowd.reports} reports of task {crowd.task.hex()}"
            if answer.verdict == "taken":
                self.mixer.forget(batch)
                self._count(crowds=1, forwarded=crowd.reports)
                _log.info("forwarded %s", words)
            elif (
                answer.verdict == "later"
            ):  # it may be put right by somebody, and nobody else may say that it is taken
                _log.warning("the collector answers %d to %s", answer.status, words)
                delivered, asked = False, max(asked, answer.wait)
            elif answer.verdict == "too large" and self.mixer.cut(batch, self._least_of(crowd)):
                _log.warning("the collector takes smaller crowds only, so this is cut in two: %s", words)
                delivered = False  # the halves are for the next round
            else:
                # Perhaps it came up with another key: kept, and tried again at the next start.
                self._set_aside[batch] = len(crowd.payload)
                self._drop_refused()
                _log.error("the collector refuses (%d) %s", answer.status, words)
        return delivered, asked

    def _drop_refused(self) -> None:
        """Whoever can make the collector refuse crowds must not fill the store with them."""
        while sum(self._set_aside.values()) > MOST_REFUSED:
            oldest = next(iter(self._set_aside))
            self.mixer.forget(oldest)
            del self._set_aside[oldest]
            _log.error("a refused crowd is dropped: there are too many of them")

    def full(self) -> bool:
        """Whether no more items can be taken now."""
        backlog = self.mixer.outgoing_bytes() - sum(list(self._set_aside.values()))
        return backlog > MOST_OUTGOING or self.mixer.waiting_bytes() > MOST_WAITING

    def _count(self, **more: int) -> None:
        with self._counting:
            self._counts.update(more)

    def _troubles(self) -> list[str]:
        """What keeps items from being taken."""
        try:
            self.mixer.ping()
        except (sqlite3.Error, OSError) as problem:
            _log.error("the store cannot be written: %s", problem)
            return ["the store cannot be written"]
        if not self.keys.any:
            return ["the collector has not said which keys it has"]
        return ["the collector does not answer and the store is full"] if self.full() else []

    def metrics(self, named: bool = False) -> str:
        """Counts since the start, and what waits now, for Prometheus. Nothing about single items or senders.

        Tasks are called by their digests only if they are to be `named`.
        """
        with self._counting:
            counts = self._counts.copy()
        waiting = Counter({name: self.mixer.waiting(task) for name, task in self.tasks.items()})
        outcomes = Counter({name: counts[name] for name in ("accepted", "repeated", "refused")})
        lines = [
            *series("shuffler_items_total", "counter", "Items that came.", "outcome", outcomes),
            *series(
                "shuffler_waiting",
                "gauge",
                "Items that wait for their crowd.",
                "task",
                by_task(waiting, lambda task: named),
            ),
            *single(
                "shuffler_backlog", "gauge", "Crowds that wait for the collector.", len(self.mixer.outgoing())
            ),
            *single("shuffler_backlog_bytes", "gauge", "Their size.", self.mixer.outgoing_bytes()),
            *single(
                "shuffler_set_aside", "gauge", "Crowds that the collector refused.", len(self._set_aside)
            ),
            *single("shuffler_crowds_total", "counter", "Crowds that arrived.", counts["crowds"]),
            *single("shuffler_forwarded_total", "counter", "Items in them.", counts["forwarded"]),
            *worker_lines(self.workers),
        ]
        return "\n".join(lines) + "\n"

    def _end_periods(self, task: Task) -> None:
        current = _labels(task)
        if self._open.get(task.digest) == current:
            return
        dropped = self.mixer.end_periods(task, current)
        self._open[task.digest] = current
        if dropped:
            words = f"{dropped} reports of task {task.digest.hex()}"
            _log.warning("dropped %s: their period is over, and they were too few for a crowd", words)

    def _post(self, crowd: Crowd) -> Answer:
        connection = connect(self._collector, timeout=60)
        version, payload = _as_sent(crowd)
        route = f"/{version}/tasks/{crowd.task.hex()}/shuffled"
        try:
            return post(connection, self._collector, route, payload, self._token, crowd.batch)[0]
        finally:
            connection.close()


def _as_sent(crowd: Crowd) -> tuple[str, bytes]:
    """The version of the interface, and the body. Items that name no key travel as they came, without a name.

    So a crowd that was sent before the shuffler knew of names has the same bytes when it is sent again.
    """
    width = len(crowd.payload) // crowd.reports
    if not crowd.payload.endswith(NO_KEY):
        return "v2", crowd.payload
    items = range(0, len(crowd.payload), width)
    return "v1", b"".join(crowd.payload[start : start + width - KEY_BYTES] for start in items)


def _labels(task: Task) -> set[bytes]:
    """The periods that are open now, as items name them."""
    return {period.encode()[: label_width(task)] for period in open_periods(task, today())}


def create_shuffler_app(shuffler: Shuffler, settings: Settings | None = None) -> Starlette:
    """The HTTP side: one route that takes sealed items, and those that say how it is."""
    limits = settings or Settings()
    relay = Relay(shuffler, limits)

    async def alive(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    def ready(request: Request) -> Response:
        shuffler.health.check()
        return JSONResponse({"status": "ready"})

    def metrics(request: Request) -> Response:
        return Response(shuffler.metrics(limits.open_metrics), media_type=MEDIA)

    async def refuse(request: Request, problem: Exception) -> Response:
        assert isinstance(problem, Problem)
        return problem.response()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        shuffler.start()
        yield
        await run_in_threadpool(relay.stop)
        await run_in_threadpool(shuffler.stop)

    routes = [
        *(Route(f"/{version}/tasks/{{task}}/sealed", relay, methods=["POST"]) for version in ("v1", "v2")),
        *(
            Route(path, answer)
            for path, answer in (("/healthz", alive), ("/readyz", ready), ("/metrics", metrics))
        ),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={Problem: refuse})
    app.add_middleware(CrossOrigin, allowed=limits.report_origins)
    app.state.settings = limits
    app.state.intakes = {
        f"/{version}/tasks/{digest}/sealed": relay for version in ("v1", "v2") for digest in shuffler.tasks
    }
    return app
