"""Pages of other origins: which of them may speak to the routes for devices, and those routes only.

A browser asks before it lets a page speak to another origin (CORS). The setting `report_origins` names the pages that
may: they can read a task's document and the collector's public key, and send reports. Nothing that reads estimates is
ever open to them, and cookies never count: what a page sends is believed because of its token, or because everybody
may send (`hubbub.collect.strangers`). An upload names its batch in a header of its own, so a browser always asks first,
and a page that is not named cannot send anything.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hubbub.collect.problems import HEADERS, Problem
from hubbub.protocol.delivery import BATCH_HEADER, LABELS_HEADER, PERIOD_HEADER

#: What pages may ask for, and by which method.
_OPEN = re.compile(
    r"(/v1/key|/v1/tasks/[^/]+/device)|(/v1/tasks/[^/]+/(?:reports|nonces)|/v2/tasks/[^/]+/sealed)"
)
#: What pages may say in headers.
_SAID = ", ".join(("Authorization", "Content-Type", BATCH_HEADER, LABELS_HEADER, PERIOD_HEADER))
#: Seconds for which a browser need not ask again; none keeps it for longer than two hours.
_REMEMBERED = 7200

Headers = list[tuple[bytes, bytes]]


class Origins:
    """The origins that are allowed."""

    def __init__(self, allowed: Collection[str]) -> None:
        self._allowed = frozenset(each.encode() for each in allowed)

    def headers(self, origin: bytes | None) -> Headers:
        """What to add to an answer; caches must know that it depends on who asks."""
        if not self._allowed:
            return []
        if origin not in self._allowed or origin is None:
            return [(b"vary", b"Origin")]
        return [
            (b"vary", b"Origin"),
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", b"Retry-After, ETag"),
        ]

    def allows(self, origin: bytes | None) -> bool:
        """Whether a page of this origin may speak to us."""
        return origin in self._allowed

    def preflight(self, origin: bytes, method: str) -> Headers:
        """The answer to a browser that asks whether its page may use this method here."""
        return [
            *self.headers(origin),
            (b"access-control-allow-methods", method.encode()),
            (b"access-control-allow-headers", _SAID.encode()),
            (b"access-control-max-age", b"%d" % _REMEMBERED),
        ]


class CrossOrigin:
    """Answers browsers that ask, and adds to what pages read. Uploads do so themselves (`hubbub.collect.intake`)."""

    def __init__(self, app: ASGIApp, allowed: Iterable[str]) -> None:
        self._app, self._origins = app, Origins(tuple(allowed))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = _OPEN.fullmatch(scope["path"]) if scope["type"] == "http" else None
        origin = dict(scope["headers"]).get(b"origin") if found else None
        if found is None or scope["method"] == "POST":
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and origin is not None:
            await self._answer(origin, "GET" if found[1] else "POST", scope, receive, send)
        else:

            async def send_more(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], *self._origins.headers(origin)]
                await send(message)

            await self._app(scope, receive, send_more)

    async def _answer(self, origin: bytes, method: str, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._origins.allows(origin):
            detail = (
                "Pages of this origin may not speak to this service: report_origins names those that may."
            )
            response = Problem(403, "not from there", detail).response()
            response.raw_headers += [*HEADERS, *self._origins.headers(origin)]
            await response(scope, receive, send)
            return
        headers = [*HEADERS, *self._origins.preflight(origin, method)]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
