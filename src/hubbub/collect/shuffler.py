"""The shuffler: takes sealed reports, waits for a crowd, mixes it and passes it on.

What it promises, and what the guarantee of the shuffled model rests on (docs/shuffler.md):

- It cannot read. Items are sealed for the collector (`hubbub.protocol.sealing`); no private key is here.
- It keeps items only: no sender, no address, no time, no batch of origin. They are stored in random places, so that
  not even the order in which they came is on disk, nor which of them came together (`hubbub.collect.staging`).
- It takes items only for keys that the collector has (`hubbub.collect.known_keys`); others would wait for ever.
- A crowd has at least `crowd` reports of one period, with the same labels and for one key (of several messages: those
  of as many people), or it does not leave, not even at shutdown. When it is closed is a matter of counts and clocks
  (`hubbub.collect.closing`). Then all that wait are one crowd, of any size, in an order drawn from the operating
  system's generator, every order being equally likely; it travels in parts under one id and counts when all of them
  are there (`hubbub.collect.forward`). No crowd holds items of two periods, so no person has more reports in it than
  the task's `reports_per_period`, or with other labels or for two keys, which the collector could tell apart: a report
  hides among those with its own labels, and among no others.
- Nothing is passed on twice. A crowd is put into its order, named and stored in one transaction before it is sent, so
  that whoever has to send it again sends the very same batch, which the collector counts once. Digests of items that
  have left stay: an item that comes again, because a device asked its ledger again or retried, or because
  somebody recorded it, is dropped. They stay until the period is over, and from then on nothing of it is taken.
- It cannot tell people apart, unless every device has a token of its own: then `per_token` limits how many items each
  may send for a period (`hubbub.collect.allowance`). All items of a task have the same size.
- Nothing acknowledged is lost while its period lasts: items are on disk before they are acknowledged. When a period
  is over (`hubbub.protocol.periods`), the items of it that never made a crowd are dropped.
"""

from __future__ import annotations

import datetime
import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hubbub.collect.allowance import Allowance, check_limit
from hubbub.collect.closing import Closing
from hubbub.collect.forward import Forward
from hubbub.collect.health import Health
from hubbub.collect.known_keys import KnownKeys, Unanswered
from hubbub.collect.metrics import MEDIA, by_task, series, single, worker_lines
from hubbub.collect.mixer import Mixer
from hubbub.collect.origins import CrossOrigin
from hubbub.collect.problems import Problem, busy
from hubbub.collect.relay import Relay
from hubbub.collect.settings import Settings
from hubbub.collect.workers import Worker
from hubbub.primitives.errors import Refused
from hubbub.privacy.people import people_among, reports_of
from hubbub.protocol.delivery import service_address
from hubbub.protocol.periods import PERIOD_BYTES, open_periods
from hubbub.protocol.sealing import KEY_BYTES, check_sealable, sealed_width
from hubbub.protocol.strata import item_numbers, label_names, prefix_width
from hubbub.protocol.task import Task

_log = logging.getLogger("hubbub.shuffler")

#: Bytes of crowds that may wait for a collector that does not answer, before devices are told to wait.
MOST_OUTGOING = 4 << 30
#: Bytes of items that may wait for their crowds, before devices are told to wait.
MOST_WAITING = 4 << 30
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
        *,
        closing: Closing | None = None,
        per_token: int | None = None,
    ) -> None:
        """`token` is for the collector; devices show one of `upload_tokens`.

        `closing` says when crowds close, and `per_token` how many items of a period are taken with one token.
        """
        if crowd < 2:
            raise Refused(f"A crowd has at least 2 reports, not {crowd}.")
        for task in tasks:
            check_sealable(task)
        self.rules = {task.digest.hex(): Closing.of(task, closing) for task in tasks}
        #: The stretch of time that each task is in, once somebody has looked.
        self._turns: dict[str, int] = {}
        self.allowance = None if per_token is None else Allowance(per_token)
        if per_token is not None:
            check_limit(tasks, per_token, "--per-token")
        self.mixer, self.tasks = mixer, {task.digest.hex(): task for task in tasks}
        self._numbers = {task.digest: item_numbers(task) for task in tasks}
        self.upload_tokens = [upload_tokens] if isinstance(upload_tokens, str) else list(upload_tokens)
        self._collector, self._crowd = service_address(collector), crowd
        self.forward = Forward(mixer, self._collector, token)
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
        """The number of reports below which a crowd of this task never leaves."""
        mean = task.mean_messages
        reports = self._crowd if mean is None else reports_of(self._crowd, mean)
        return max(task.minimum_reports, reports)

    def least_people(self, task: Task) -> int:
        """The number of people that is promised for a crowd of this task."""
        mean = task.mean_messages
        return self.least(task) if mean is None else people_among(self.least(task), mean)

    def alike(self, task: Task) -> str:
        """What the reports of one crowd have in common that everybody can see, if the task has labels."""
        if not task.labels:
            return ""
        return f" with the same {' and '.join(label_names(task))}"

    @property
    def people(self) -> str:
        """What is known about who sends."""
        if self.allowance is None:
            return "People cannot be told apart: whoever has a device's token may send many reports."
        return f"At most {self.allowance.most:,} reports of a period are taken with each device's token."

    def start(self) -> None:
        """Begin to ask for keys, and to pass crowds on, those of an earlier run first."""
        for worker in self.workers:
            worker.start()

    def stop(self) -> None:
        """End after the attempt that is under way; what waits keeps waiting on disk."""
        self.forward.stop()
        for worker in self.workers:
            worker.stop()
        self.mixer.close()

    def accept(self, task: Task, body: bytes, token: str = "") -> tuple[int, int]:
        """Keep the items of one request: see `accept_each`."""
        width = sealed_width(task)
        return self.accept_each(
            [(task, [body[at : at + width] for at in range(0, len(body), width)], token)]
        )[0]

    def accept_each(self, requests: Sequence[tuple[Task, Sequence[bytes], str]]) -> list[tuple[int, int]]:
        """Keep the items of several requests: for each, how many are new, and how many were here before.

        The rest belongs to no period that is open, names no combination of labels that the task has or no key that the
        collector has, or is more than a token may send.
        """
        if self.full():
            raise busy(503, "The collector does not answer and the store is full: send this again later.")
        taken: dict[int, tuple[int, int]] = {}
        for task in {task.digest: task for task, _, _ in requests}.values():
            period, prefix, current = PERIOD_BYTES[task.period], prefix_width(task), _open_periods(task)
            numbers, keys = self._numbers[task.digest], self.keys.names
            places = [place for place, (of, _, _) in enumerate(requests) if of.digest == task.digest]
            good = [
                [
                    item
                    for item in requests[place][1]
                    if item[:period] in current
                    and item[period:prefix] in numbers
                    and item[-KEY_BYTES:] in keys
                ]
                for place in places
            ]
            if self.allowance is None:
                counts = self.mixer.add_each(task, good)
            else:
                with self.allowance.granting(task, [requests[place][2] for place in places]) as limit:
                    counts = self.mixer.add_each(task, good, limit)
            taken.update(zip(places, counts, strict=True))
            full = self.rules[task.digest.hex()].rule == "full"
            if full and self.mixer.complete(task, self.least(task)) and not self._behind:
                self.worker.wake()  # new items do not make a silent collector answer sooner
        fresh, repeated = (sum(counts) for counts in zip(*taken.values(), strict=True))
        sent = sum(len(items) for _, items, _ in requests)
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
            now = time.time()
            return min([_TIDY, *(rule.until_next(now) for rule in self.rules.values())])
        pause, self._pause = self._pause, min(2 * self._pause, PATIENCE[1])
        return max(pause, asked)

    def step(self) -> tuple[bool, float]:
        """Close the crowds that are due, end the periods that are over and send all crowds that are closed.

        Whether all of them have left, and the seconds that the collector asks to wait if not.
        """
        for task in self.tasks.values():
            self._close(task)
            self._end_periods(task)
        arrived, delivered, asked = self.forward.send_all()
        self._count(crowds=len(arrived), forwarded=sum(crowd.reports for crowd in arrived))
        return delivered, asked

    def _close(self, task: Task) -> None:
        """Close what the task's rule says: see `hubbub.collect.closing`."""
        name, current = task.digest.hex(), _open_periods(task)
        rule, ended = self.rules[name], self.mixer.periods(task) - current
        if rule.rule == "full":
            self.mixer.close_crowds(task, self.least(task), current)
            return
        turn = rule.turn(time.time())
        if self._begins(task, rule, turn):
            due = rule.due(task, self.mixer.periods(task), current, today())
            self.mixer.close_crowds(task, self.least(task), due)
        elif ended:  # the last moment for a period that is closed for good
            self.mixer.close_crowds(task, self.least(task), ended)

    def _begins(self, task: Task, rule: Closing, turn: int) -> bool:
        """Whether a stretch of time has ended since somebody looked, perhaps before a restart.

        Nothing comes while nobody is here, so what is there after a restart was there when the stretch ended.
        """
        name = task.digest.hex()
        if self._turns.get(name) == turn:
            return False
        before = self.mixer.begin_turn(task, rule.seconds, turn)
        self._turns[name] = turn
        return before not in (0, turn)

    def full(self) -> bool:
        """Whether no more items can be taken now."""
        backlog = self.mixer.outgoing_bytes() - sum(list(self.forward.refused.values()))
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
                "shuffler_set_aside", "gauge", "Crowds that the collector refused.", len(self.forward.refused)
            ),
            *single("shuffler_crowds_total", "counter", "Crowds that arrived.", counts["crowds"]),
            *single("shuffler_forwarded_total", "counter", "Items in them.", counts["forwarded"]),
            *worker_lines(self.workers),
        ]
        return "\n".join(lines) + "\n"

    def _end_periods(self, task: Task) -> None:
        current = _open_periods(task)
        if self._open.get(task.digest) == current:
            return
        dropped = self.mixer.end_periods(task, current)
        self._open[task.digest] = current
        if dropped:
            words = f"{dropped} reports of task {task.digest.hex()}"
            _log.warning("dropped %s: their period is over, and they were too few for a crowd", words)


def _open_periods(task: Task) -> set[bytes]:
    """The periods that are open now, as items name them."""
    return {period.encode()[: PERIOD_BYTES[task.period]] for period in open_periods(task, today())}


def create_shuffler_app(shuffler: Shuffler, settings: Settings | None = None) -> Starlette:
    """The HTTP side: one route that takes sealed items, and those that say how it is."""
    limits = settings or Settings()
    relay = Relay(shuffler, limits)

    async def alive(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    def ready(request: Request) -> Response:
        shuffler.health.check()
        if not relay.alive:
            raise Problem(503, "not ready", "items: the thread has ended.", {"Retry-After": "1"})
        return JSONResponse({"status": "ready", "people": shuffler.people})

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
