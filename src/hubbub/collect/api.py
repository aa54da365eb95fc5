"""The HTTP service: uploads, readings, health, and the dashboard's pages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hubbub import __version__
from hubbub.collect.asked_groups import groups_and_time
from hubbub.collect.asking import (
    ADMIN,
    ANALYST,
    MEDIA_OF_FILES,
    UNDERSTOOD,
    Level,
    TheChoice,
    TheService,
    TheTask,
    attachment,
    file_of,
    saved,
)
from hubbub.collect.assembly import Parts
from hubbub.collect.dashboard import router as dashboard
from hubbub.collect.describe import add_uploads
from hubbub.collect.export import parquet_chunks
from hubbub.collect.found_keys import router as found_keys
from hubbub.collect.handout import Handout
from hubbub.collect.ingest import Uploads
from hubbub.collect.intake import Room
from hubbub.collect.metrics import MEDIA
from hubbub.collect.origins import CrossOrigin
from hubbub.collect.problems import HEADERS, Problem, busy, our_mistake
from hubbub.collect.segments import Damaged
from hubbub.collect.service import Service, Withheld
from hubbub.collect.settings import Settings
from hubbub.collect.store import Store, Unavailable
from hubbub.collect.tokens import allows
from hubbub.model.mechanism import Quantity
from hubbub.primitives.errors import Refused
from hubbub.protocol.device_document import document_digest
from hubbub.protocol.sealing import key_id
from hubbub.protocol.task import Task

_log = logging.getLogger("hubbub.api")


def create_app(store: Store, tasks: Sequence[Task], settings: Settings | None = None) -> FastAPI:
    """The service as an ASGI application. It lives as long as the store is open."""
    service = Service(store, tasks, settings or Settings())
    app = _App(title="hubbub", version=__version__, lifespan=_lifespan, docs_url=None, redoc_url=None)
    app.state.service, app.state.settings = service, service.settings
    app.state.room = Room(service.settings)
    shared: Any = (
        service.by_digest,
        service.settings,
        service.tokens,
        service.store,
        service.writer,
        service.metrics,
        app.state.room,
    )
    more: Any = {"mint": service.mint, "clock": service.clock, "damaged": service.folder.damaged}
    route = partial(Uploads, *shared, **more)
    for version, name, uploads in (
        ("v1", "reports", route()),
        ("v1", "nonces", Handout(*shared, **more)),
        ("v1", "shuffled", route(keys=service.keys, named=False)),
        ("v2", "shuffled", route(keys=service.keys)),
        ("v3", "shuffled", Parts(*shared, keys=service.keys, **more)),
    ):
        app.router.routes.append(Route(f"/{version}/tasks/{{task}}/{name}", uploads, methods=["POST"]))
        app.uploads.update({f"/{version}/tasks/{digest}/{name}": uploads for digest in service.by_digest})
    app.state.intakes = {path: uploads for path, uploads in app.uploads.items() if path.endswith("/reports")}
    for questions in (_reading, found_keys, groups_and_time):
        app.include_router(questions, dependencies=UNDERSTOOD)
    app.include_router(_open)
    app.include_router(dashboard)
    app.add_middleware(CrossOrigin, allowed=service.settings.report_origins)
    app.add_middleware(_Outermost)
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    plain_openapi = app.openapi
    app.openapi = lambda: add_uploads(plain_openapi())  # type: ignore[method-assign]
    return app


class _App(FastAPI):
    """The web framework, with a short way for uploads: they need no routing, and no middleware of its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.uploads: dict[str, Uploads] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self.uploads:
            await self.uploads[scope["path"]](scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Work in the background; at the end, write what is queued."""
    service: Service = app.state.service
    service.start()
    _log.info("collecting %d tasks", len(service.tasks()))
    yield
    await asyncio.to_thread(service.close)
    _log.info("stopped")


class _Outermost:
    """Security headers on every answer, and a plain answer for mistakes of ours."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_safely(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                given = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in HEADERS if one[0] not in given)]
            await send(message)

        try:
            await self._app(scope, receive, send_safely)
        except ClientDisconnect:  # nobody is left to hear of it
            return
        except Exception:
            _log.exception("a request failed")
            if started:
                raise
            await our_mistake().response()(scope, receive, send_safely)


async def _problem(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)
    return problem.response()


async def _refused(_: Request, problem: Exception) -> Response:
    return Problem(422, "refused", str(problem)).response()


async def _withheld(_: Request, problem: Exception) -> Response:
    return Problem(403, "withheld", str(problem)).response()


async def _unavailable(_: Request, problem: Exception) -> Response:
    return busy(503, "The store does not answer now: ask again later.").response()


async def _damaged(_: Request, problem: Exception) -> Response:
    return Problem(503, "damaged", str(problem)).response()


async def _invalid(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, RequestValidationError)
    first = problem.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    return Problem(422, "not understood", f"{where}: {first['msg']}.").response()


async def _http(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    headers = dict(problem.headers) if problem.headers else None
    return Problem(problem.status_code, str(problem.detail).lower(), f"{problem.detail}.", headers).response()


_HANDLERS: dict[type[Exception], Any] = {
    Problem: _problem,
    Withheld: _withheld,
    Refused: _refused,
    Unavailable: _unavailable,
    Damaged: _damaged,
    RequestValidationError: _invalid,
    HTTPException: _http,
}


# Reading

_reading = APIRouter()

_PARQUET = "application/vnd.apache.parquet"
Keys = Annotated[list[str] | None, Query(max_length=1000, description="Keys to look up.")]
Correct = Annotated[
    bool, Query(description="Correct for entries that were dropped (tasks with count_lengths).")
]


@_reading.get("/v1/tasks", dependencies=ANALYST)
def list_tasks(request: Request, service: TheService) -> dict[str, Any]:
    """All tasks that the token is for, without their task files."""
    rows = service.overviews(service.grant_of(request))
    return {"tasks": [{key: value for key, value in row.items() if key != "toml"} for row in rows]}


@_reading.get("/v1/tasks/{task}", dependencies=ANALYST)
def show_task(service: TheService, task: TheTask) -> dict[str, Any]:
    """One task, what has arrived for it, and its guarantee."""
    return service.overview(task)


@_reading.get("/v1/tasks/{task}/device", **file_of("application/json"))
def show_device_document(request: Request, service: TheService, task: str) -> Response:
    """The task as devices in other languages get it. It is for everybody: whoever is to report has to read it."""
    found = service.device_document(task)
    if found is None:
        raise Problem(404, "no such task", "No task with this digest is collected here.")
    tag = f'"{document_digest(found)}"'
    headers = {"ETag": tag, "Cache-Control": "public, max-age=3600"}
    if tag in request.headers.get("If-None-Match", ""):
        return Response(status_code=304, headers=headers)
    return Response(found, media_type="application/json", headers=headers)


@_reading.get("/v1/tasks/{task}/estimates", dependencies=ANALYST)
def show_estimates(
    service: TheService,
    task: TheTask,
    choice: TheChoice,
    *,
    keys: Keys = None,
    top: Annotated[int, Query(ge=1, le=10_000, description="How many keys, if none are named.")] = 20,
    level: Level = 0.95,
    quantity: Quantity | None = None,
    simultaneous: bool = False,
    correct: Correct = False,
) -> dict[str, Any]:
    """Estimates with error bars: of the named keys, or of those that stand out most; for everybody, or for some."""
    found = service.estimates(task, keys, top, level, quantity, simultaneous, correct=correct, choice=choice)
    chosen = {} if choice.everything else {"chosen": choice.words()}
    return {**found.about(), **chosen, "estimates": found.rows()}


@_reading.get(
    "/v1/tasks/{task}/estimates.{form}", dependencies=ANALYST, **file_of("text/csv", "application/json")
)
def save_estimates(
    service: TheService,
    task: TheTask,
    choice: TheChoice,
    form: str,
    *,
    keys: Keys = None,
    top: Annotated[int | None, Query(ge=1, le=10_000, description="How many keys, if not all.")] = None,
    level: Level = 0.95,
    quantity: Quantity | None = None,
    simultaneous: bool = False,
    correct: Correct = False,
) -> Response:
    """Estimates of the named keys, of those that stand out most, or of all, as a file: csv or json."""
    media = MEDIA_OF_FILES.get(form)
    if media is None:
        raise Problem(404, "no such file", "Estimates come as estimates.csv and estimates.json.")
    found = service.estimates(task, keys, top, level, quantity, simultaneous, correct=correct, choice=choice)
    return saved(replace(found, group=choice.words()).save, f"estimates.{form}", media)


@_reading.get("/v1/tasks/{task}/history", dependencies=ANALYST)
def show_history(
    service: TheService,
    task: TheTask,
    keys: Annotated[list[str] | None, Query(max_length=50, description="Keys to follow.")] = None,
    level: Level = 0.95,
    quantity: Quantity | None = None,
) -> dict[str, Any]:
    """Reports by period of arrival, and estimates of named keys over time."""
    return service.history(task, keys or (), level, quantity)


@_reading.get("/v1/tasks/{task}/state", dependencies=ADMIN, **file_of("application/octet-stream"))
def download_state(service: TheService, task: TheTask) -> Response:
    """The state file: sums of all reports, by group and period, or in some families the reports themselves."""
    pieces = service.state_file(task)
    first, headers = next(pieces), attachment("state.hubbub")  # as below
    return StreamingResponse(chain([first], pieces), media_type="application/octet-stream", headers=headers)


@_reading.get("/v1/tasks/{task}/reports.parquet", dependencies=ADMIN, **file_of(_PARQUET))
def download_reports(service: TheService, task: TheTask) -> Response:
    """All kept reports as a Parquet file, one row per batch."""
    if not task.keep_reports:
        raise Problem(409, "not kept", "The reports of this task are dropped once they are in the state.")
    chunks = parquet_chunks(task, service.store.kept(task.digest.hex()))
    first = next(chunks)  # what cannot be read from the start is a problem and not half a file
    headers = attachment("reports.parquet")
    return StreamingResponse(chain([first], chunks), media_type=_PARQUET, headers=headers)


# For everybody

_open = APIRouter()


@_open.get("/v1/key")
def public_key(service: TheService) -> dict[str, str | list[str]]:
    """The public key to which devices seal reports that go through a shuffler, its name, and all names that open."""
    current = service.keys.public
    return {"key": current.hex(), "id": key_id(current).hex(), "opens": service.keys.names}


def _named(request: Request, service: Service) -> Callable[[str], bool]:
    """Which tasks may be named to whoever asks."""
    grant = service.grant_of(request)
    if service.settings.open_metrics:
        return lambda task: True
    return lambda task: grant is not None and allows(grant, "analyst") and grant.covers(task)


@_open.head("/healthz", include_in_schema=False)
@_open.get("/healthz")
async def healthy() -> dict[str, str]:
    """The process answers."""
    return {"status": "alive"}


@_open.head("/readyz", include_in_schema=False)
@_open.get("/readyz")
def ready(request: Request, service: TheService) -> JSONResponse:
    """The store can be written and is the one that was opened, and no thread in the background is in trouble.

    Tasks that are damaged are counted, and named to those who may know of them; the others go on.
    """
    named = _named(request, service)
    damaged = list(service.folder.damaged)
    names = sorted(task for task in damaged if named(task))
    about = {"damaged_tasks": len(damaged), **({"damaged": names} if names else {})} if damaged else {}
    try:
        service.health.check()
    except Problem as problem:
        problem.more.update(about)
        raise
    return JSONResponse({"status": "ready", **about})


@_open.head("/metrics", include_in_schema=False)
@_open.get("/metrics", response_class=PlainTextResponse)
def metrics(request: Request, service: TheService) -> PlainTextResponse:
    """Counters for Prometheus. Tasks are named to those who may know of them; the others are added up."""
    named, unfinished = _named(request, service), service.unfinished
    text = service.metrics.text(len(service.writer), service.workers, named, unfinished)
    return PlainTextResponse(text, media_type=MEDIA)
