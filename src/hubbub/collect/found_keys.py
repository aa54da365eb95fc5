"""Routes for keys that nobody had listed: what was found, as an answer, as a file, and as the task that asks for it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from hubbub.collect.asking import ANALYST, MEDIA_OF_FILES, Level, TheService, TheTask, file_of, saved
from hubbub.collect.problems import Problem
from hubbub.collect.service import Service
from hubbub.model.mechanism import Quantity
from hubbub.plan.prospects import listing_task
from hubbub.protocol.task import Task
from hubbub.server.discovery import Discovery
from hubbub.server.search import tree_of

router = APIRouter()


@router.get("/v1/tasks/{task}/discovered", dependencies=ANALYST)
async def show_discovered(
    service: TheService,
    task: TheTask,
    top: Annotated[int, Query(ge=1, le=10_000, description="How many keys.")] = 20,
    level: Level = 0.95,
    quantity: Quantity | None = None,
) -> dict[str, Any]:
    """Keys that nobody had listed, found in the reports of a task whose keys are a tree, with their estimates."""
    found = await _discovered(service, task, level, quantity)
    return {**found.about(), "keys": found.rows(top), "total": len(found)}


@router.get(
    "/v1/tasks/{task}/discovered.{form}",
    dependencies=ANALYST,
    **file_of("text/csv", "application/json", "application/toml"),
)
async def save_discovered(
    service: TheService, task: TheTask, form: str, level: Level = 0.95, quantity: Quantity | None = None
) -> Response:
    """All found keys as a file (csv or json), or as the vocabulary of a task that asks for them by name (toml)."""
    media = {**MEDIA_OF_FILES, "toml": "application/toml"}.get(form)
    if media is None:
        raise Problem(
            404, "no such file", "Found keys come as discovered.csv, discovered.json and discovered.toml."
        )
    found = await _discovered(service, task, level, quantity)
    save = listing_task(found).save if form == "toml" else found.save
    return await run_in_threadpool(saved, save, f"discovered.{form}", media)


async def _discovered(service: Service, task: Task, level: float, quantity: Quantity | None) -> Discovery:
    """The wait for a search takes no thread: other readers need them."""
    tree_of(task)
    finding = await asyncio.wrap_future(service.finder.search(task))
    return await run_in_threadpool(finding.estimated, quantity, level)
