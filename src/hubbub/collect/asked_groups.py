"""Routes for groups and periods: which there are, how two differ, and how a key went over time."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response

from hubbub.collect.asking import (
    ANALYST,
    MEDIA_OF_FILES,
    Level,
    TheChoice,
    TheService,
    TheTask,
    attachment,
    file_of,
    saved,
)
from hubbub.collect.problems import Problem
from hubbub.collect.trends import compared, listed, trend, trend_columns
from hubbub.model.mechanism import Quantity
from hubbub.primitives.errors import Refused
from hubbub.server.columns import csv_bytes
from hubbub.server.portions import PERIOD

groups_and_time = APIRouter()

Keys = Annotated[
    list[str] | None, Query(max_length=1000, description="Keys to compare; all of a closed list if none.")
]
Name = Annotated[str, Query(max_length=32, description="The label whose values are compared, or period.")]
Followed = Annotated[list[str], Query(min_length=1, max_length=50, description="Keys to follow.")]
Side = Annotated[str | None, Query(max_length=40, description="A value of the label, or a period.")]


@groups_and_time.get("/v1/tasks/{task}/strata", dependencies=ANALYST)
def show_strata(service: TheService, task: TheTask) -> dict[str, Any]:
    """Groups and periods that have reports, and how many."""
    return listed(service, task)


def _sides(first: str | None, second: str | None) -> tuple[str, str] | None:
    if (first is None) != (second is None):
        raise Refused("Two groups are compared: name both, or neither for the two latest periods.")
    return None if first is None or second is None else (first, second)


@groups_and_time.get("/v1/tasks/{task}/compare", dependencies=ANALYST)
def show_comparison(
    service: TheService,
    task: TheTask,
    choice: TheChoice,
    *,
    by: Name = PERIOD,
    first: Side = None,
    second: Side = None,
    keys: Keys = None,
    top: Annotated[int, Query(ge=1, le=10_000, description="How many keys, those that differ first.")] = 20,
    level: Level = 0.95,
    quantity: Quantity | None = None,
    simultaneous: bool = False,
) -> dict[str, Any]:
    """What differs between two groups, or between two periods: the two latest ones if none are named."""
    asked = (service, task, by, _sides(first, second), choice, keys, quantity, level)
    found = compared(*asked, simultaneous=simultaneous)
    rows = found.top(top).rows()
    return {**found.about(), "chosen": choice.words(), "differences": rows}


@groups_and_time.get(
    "/v1/tasks/{task}/compare.{form}", dependencies=ANALYST, **file_of("text/csv", "application/json")
)
def save_comparison(
    service: TheService,
    task: TheTask,
    choice: TheChoice,
    form: str,
    *,
    by: Name = PERIOD,
    first: Side = None,
    second: Side = None,
    keys: Keys = None,
    level: Level = 0.95,
    quantity: Quantity | None = None,
    simultaneous: bool = False,
) -> Response:
    """The same for all keys, as a file: csv or json."""
    media = MEDIA_OF_FILES.get(form)
    if media is None:
        raise Problem(404, "no such file", "Comparisons come as compare.csv and compare.json.")
    asked = (service, task, by, _sides(first, second), choice, keys, quantity, level)
    found = compared(*asked, simultaneous=simultaneous)
    return saved(found.save, f"compare.{form}", media)


@groups_and_time.get("/v1/tasks/{task}/trend", dependencies=ANALYST)
def show_trend(
    service: TheService,
    task: TheTask,
    choice: TheChoice,
    *,
    keys: Followed,
    level: Level = 0.95,
    quantity: Quantity | None = None,
) -> dict[str, Any]:
    """Estimates of keys period by period, and whether they changed since the period before."""
    return {"chosen": choice.words(), **trend(service, task, keys, choice, quantity, level)}


@groups_and_time.get("/v1/tasks/{task}/trend.csv", dependencies=ANALYST, **file_of("text/csv"))
def save_trend(
    service: TheService,
    task: TheTask,
    choice: TheChoice,
    *,
    keys: Followed,
    level: Level = 0.95,
    quantity: Quantity | None = None,
) -> Response:
    """The same as a file: a row per period and key."""
    found = trend(service, task, keys, choice, quantity, level)
    data = csv_bytes(trend_columns(found, choice))
    return Response(data, media_type=MEDIA_OF_FILES["csv"], headers=attachment("trend.csv"))
