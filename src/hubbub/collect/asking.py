"""What routes share: who asks, about which task, and how files are answered."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from fastapi.responses import Response

from hubbub.collect.problems import Problem, unauthorized
from hubbub.collect.service import Service
from hubbub.collect.tokens import Role, allows
from hubbub.primitives.text import visible
from hubbub.protocol.task import Task
from hubbub.server.portions import Choice, choice_of

#: Parameters that a refusal names, and characters of each.
_MOST, _LONGEST = 5, 40


def service_of(request: Request) -> Service:
    """The service of the application that was asked."""
    service: Service = request.app.state.service
    return service


def _task(request: Request, task: str) -> Task:
    found, grant = service_of(request).by_digest.get(task), service_of(request).grant_of(request)
    if found is None or (grant is not None and not grant.covers(task)):
        raise Problem(404, "no such task", "No task with this digest is collected here.")
    return found


def _needs(*roles: Role) -> Any:
    """A dependency that lets only these roles pass."""

    def check(request: Request) -> None:
        grant = service_of(request).grant_of(request)
        if not allows(grant, *roles):
            raise unauthorized(grant is not None)

    return Depends(check)


def _understood(request: Request) -> None:
    """Refuse a question with a parameter that its route does not have: the answer would be to another question."""
    known = _parameters(request.scope["route"].dependant)
    others = sorted(request.query_params.keys() - known)
    if others:
        words = ", ".join(repr(visible(name[:_LONGEST])) for name in others[:_MOST])
        detail = f"This question takes no {words}: it takes {', '.join(sorted(known)) or 'no parameters'}."
        raise Problem(422, "not understood", detail)


def _parameters(dependant: Any) -> set[str]:
    """The names of a route's parameters, with those of all that it depends on."""
    found = {field.alias for field in dependant.query_params}
    return found.union(*(_parameters(each) for each in dependant.dependencies))


def file_of(*media: str) -> dict[str, Any]:
    """The description of a route that answers with a file."""
    return {"response_class": Response, "responses": {200: {"content": {name: {} for name in media}}}}


ANALYST, ADMIN = [_needs("analyst")], [_needs("admin")]
#: Of all routes that answer questions about tasks.
UNDERSTOOD = [Depends(_understood)]
MEDIA_OF_FILES = {"csv": "text/csv; charset=utf-8", "json": "application/json"}
TheService = Annotated[Service, Depends(service_of)]
TheTask = Annotated[Task, Depends(_task)]


def _choice(
    where: Annotated[
        list[str] | None,
        Query(max_length=20, description="Labels, as country=de; several for several labels."),
    ] = None,
    period: Annotated[str | None, Query(max_length=20, description="One period, as 2026-W46.")] = None,
    first: Annotated[str | None, Query(alias="from", max_length=20, description="The first period.")] = None,
    last: Annotated[str | None, Query(alias="to", max_length=20, description="The last period.")] = None,
) -> Choice:
    return choice_of(where or (), period, first, last)


TheChoice = Annotated[Choice, Depends(_choice)]
Level = Annotated[float, Query(gt=0, lt=1, description="Level of the intervals.")]


def saved(save: Callable[[Path], None], name: str, media: str) -> Response:
    """What `save` writes to a file of this name, as a download."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        save(path)
        return Response(path.read_bytes(), media_type=media, headers=attachment(name))


def attachment(name: str) -> dict[str, str]:
    """The headers of a download."""
    return {"Content-Disposition": f'attachment; filename="{name}"'}
