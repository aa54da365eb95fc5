"""The dashboard: pages that show what the crowd says, with error bars and the guarantee.

Pages are made on the server and work without script; the script fetches the parts that change every two seconds
and puts them in place. Keys may be any text: templates escape everything, and the pages allow no script and no
style but their own files.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from hubbub.collect.dashboard.choices import View
from hubbub.collect.dashboard.pages import FILES, render
from hubbub.collect.dashboard.views import task_view
from hubbub.collect.problems import Problem
from hubbub.collect.tokens import COOKIE, SESSION_SECONDS, allows
from hubbub.protocol.task import Task

router = APIRouter(include_in_schema=False)

#: A login form has one short field.
_LONGEST_FORM = 4096
#: Forms that may be on their way: anybody may send one, and they must not take the places of uploads.
_MOST_LOGINS = 16

Asked = Annotated[list[str] | None, Query(max_length=20)]


def view_of(
    request: Request,
    key: Asked = None,
    quantity: str = "",
    show: str = "",
    order: str = "",
    level: str = "",
) -> View:
    """What the address asks for; what it asks for that there is not is as if it had not asked."""
    keys, query = [text for text in key or [] if text], request.query_params
    return View.parse(keys, quantity, show, order, level, query.getlist("where"), query)


def _reader(request: Request) -> None:
    """Whoever may not read estimates is sent to the login page."""
    if not allows(request.app.state.service.grant_of(request), "analyst"):
        raise Problem(303, "log in", "Log in to see this page.", {"Location": "/login"})


def _same_origin(request: Request) -> None:
    """Refuse forms that another site has made a browser send, unless the settings name it."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin", "")
    own = f"://{request.headers.get('host', '')}"
    same = site == "same-origin" if site else origin in (f"http{own}", f"https{own}")
    if not same and origin not in request.app.state.settings.origins:
        raise Problem(403, "not from here", "Use the form on this site's own page.")


@router.get("/", dependencies=[Depends(_reader)])
def tasks(request: Request) -> HTMLResponse:
    """All tasks."""
    service = request.app.state.service
    return HTMLResponse(render("tasks.html", tasks=service.overviews(service.grant_of(request))))


@router.get("/tasks/{digest}", dependencies=[Depends(_reader)])
def task(
    request: Request, digest: str, view: Annotated[View, Depends(view_of)], part: bool = False
) -> HTMLResponse:
    """One task; with `part`, only what changes while the page is open."""
    service = request.app.state.service
    found, grant = service.by_digest.get(digest), service.grant_of(request)
    if found is None or grant is None or not grant.covers(digest):
        return HTMLResponse(render("missing.html"), 404)
    shown = task_view(service, found, view)
    shown["admin"] = allows(grant)
    return HTMLResponse(render("live.html" if part else "task.html", **shown))


def visiting(task: Task) -> APIRouter:
    """A page for everybody, which the demo adds: a visitor reports from it, and sees the estimates, too."""
    page = APIRouter(include_in_schema=False)

    @page.get("/visit")
    def visit(request: Request, view: Annotated[View, Depends(view_of)], part: bool = False) -> HTMLResponse:
        shown = task_view(request.app.state.service, task, view)
        shown["most"] = task.mechanism.max_entries
        return HTMLResponse(render("live.html" if part else "visit.html", **shown))

    return page


@router.get("/login")
def login_page() -> HTMLResponse:
    """Where a token is typed in; one that comes in the address, after #, is sent by the page's script."""
    return HTMLResponse(render("login.html", wrong=False))


@router.post("/login", dependencies=[Depends(_same_origin)])
async def login(request: Request) -> Response:
    """Exchange a token for a session."""
    body = b""
    async for part in request.app.state.room.parts(request.receive, "", _MOST_LOGINS):
        body += part
        if len(body) > _LONGEST_FORM:
            raise Problem(413, "too large", "A login form has one short field.")
    given = parse_qs(body.decode("latin-1")).get("token", [""])[0].strip()
    tokens = request.app.state.service.tokens
    reads = allows(tokens.grant_of(given), "analyst")
    secret = await run_in_threadpool(tokens.login, given) if reads else None
    if secret is None:
        return HTMLResponse(render("login.html", wrong=True), 401)
    response = RedirectResponse("/", 303)
    secure = request.url.scheme == "https"
    response.set_cookie(
        COOKIE, secret, SESSION_SECONDS, httponly=True, samesite="strict", secure=secure, path="/"
    )
    return response


@router.post("/logout", dependencies=[Depends(_same_origin)])
def logout(request: Request) -> Response:
    """End the session, here and in the browser."""
    request.app.state.service.tokens.logout(request.cookies.get(COOKIE, ""))
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return response


@router.get("/static/{name:path}")
def static(name: str) -> Response:
    """A file of the pages. Addresses carry the file's digest, so it may be kept for good."""
    if name not in FILES:
        raise Problem(404, "no such file", "There is no such file.")
    file = FILES[name]
    return Response(
        file.data, media_type=file.media, headers={"Cache-Control": "max-age=31536000, immutable"}
    )
