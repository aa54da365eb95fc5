"""Requests to servers that run for a test."""

from __future__ import annotations

import json
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hubbub.collect.mixer import Mixer
from hubbub.protocol.sealing import KEY_BYTES, sealed_width
from hubbub.protocol.task import Task


@dataclass(frozen=True)
class Answer:
    """What a server said."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    url: str,
    body: bytes | Iterable[bytes] | None = None,
    headers: dict[str, str] | None = None,
    method: str | None = None,
) -> Answer:
    """GET, or POST when there is a body. Redirects are answers, too."""
    request = urllib.request.Request(url, body, headers or {}, method=method)  # type: ignore[arg-type]
    opener = urllib.request.build_opener(_Stay, urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as found:
            return _answer(found)
    except urllib.error.HTTPError as found:
        with found:
            return _answer(found)


def _answer(found: Any) -> Answer:
    return Answer(found.status, {name.lower(): value for name, value in found.headers.items()}, found.read())


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def opaque_items(task: Task, count: int, key: bytes = b"key1") -> list[bytes]:
    """What looks like sealed reports for one key to somebody who cannot open them."""
    return [secrets.token_bytes(sealed_width(task) - KEY_BYTES) + key for _ in range(count)]


def keyed_mixer(path: Path, *others: bytes) -> Mixer:
    """A shuffler's store that knows from earlier which keys the collector has: that of opaque items, and others."""
    mixer = Mixer(path)
    mixer.remember_keys([b"key1", *others])
    return mixer


def keys_answer(*others: bytes) -> bytes:
    """What a collector with these keys answers when it is asked for them."""
    return json.dumps({"key": "", "id": "", "opens": [key.hex() for key in (b"key1", *others)]}).encode()


def bearer(token: str) -> dict[str, str]:
    """The header that shows a token."""
    return {"Authorization": f"Bearer {token}"}


def own_answer(status: int, batch: str) -> tuple[str, bytes]:
    """Content type and body as a collector would say it of a batch."""
    if status == 200:
        return "application/json", json.dumps({"batch": batch, "accepted": 1}).encode()
    problem = {"type": "about:blank", "title": "no", "status": status, "detail": "No.", "batch": batch}
    return "application/problem+json", json.dumps(problem).encode()
