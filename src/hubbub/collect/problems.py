"""What goes wrong, told in the form of RFC 9457 (problem+json)."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

#: Sent with every answer. Pages run their own scripts only, and nobody may frame them.
HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]


class Problem(Exception):
    """An answer that is not what was asked for: a status, a few words and one sentence that says what to do."""

    def __init__(
        self, status: int, title: str, detail: str, headers: dict[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(detail)
        self.status, self.title, self.detail = status, title, detail
        self.headers, self.more = headers, more

    def about(self, batch: str) -> Problem:
        """The same, naming the batch that it is about: only so do senders believe it (`hubbub.protocol.delivery`)."""
        more = {**self.more, "batch": batch} if batch else self.more
        return Problem(self.status, self.title, self.detail, self.headers, **more)

    def response(self) -> Response:
        """The answer to send."""
        body = {"type": "about:blank", "title": self.title, "status": self.status, "detail": self.detail}
        return Response(
            json.dumps({**body, **self.more}),
            self.status,
            headers=self.headers,
            media_type="application/problem+json",
        )


def busy(status: int, detail: str) -> Problem:
    """Try again in a second."""
    return Problem(status, "busy", detail, {"Retry-After": "1"})


def unauthorized(known: bool) -> Problem:
    """No valid token, or one whose role does not allow this."""
    if known:
        return Problem(403, "not allowed", "The role of this token does not allow this.")
    headers = {"WWW-Authenticate": "Bearer"}
    return Problem(401, "token needed", "A valid token is needed: Authorization: Bearer hub_...", headers)


def our_mistake() -> Problem:
    """Something that must not happen has happened; it says nothing about the inside."""
    return Problem(500, "our mistake", "Something is wrong here; the log of the service says what.")
