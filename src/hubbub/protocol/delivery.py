"""Which answers count when a batch is sent to a collector or a shuffler.

Between a sender and a collector there may be anything: a hotel's login page that answers 200 to everything, a proxy
with a limit of its own, a maintenance page, a redirect. An answer is the collector's own if it is whole JSON of the
right type and repeats the batch's id, which is random and which nobody else has a reason to say. Only that counts:

- 200, `application/json`, with "batch" the id and "accepted" a number: the batch is on the collector's disk;
- 409, 413 or 422, `application/problem+json`, with "batch" the id and "status" the same number: it will never be
  taken as it is (413: a smaller one may be);
- 429 of the same form, with "begins" a day: its period has not begun, by the collector's clock. It is kept and sent
  again, but it alone: other batches need not wait for it.

Everything else says nothing about the batch, which is kept and sent again. Redirects are not followed: the token and
the reports are for the address that was given.
"""

from __future__ import annotations

import http.client
import json
import re
import secrets
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Literal, NamedTuple
from urllib.parse import SplitResult, urlsplit

from hubbub.primitives.errors import Refused

Verdict = Literal["taken", "too large", "refused", "early", "later"]

#: The header that names a batch, and what a name may be.
BATCH_HEADER = "Hubbub-Batch"
_BATCH_ID = re.compile("[A-Za-z0-9_-]{1,64}")
#: The headers that say which stratum a batch of bare reports belongs to: `country=de,version=2` and `2026-W46`.
LABELS_HEADER, PERIOD_HEADER = "Hubbub-Labels", "Hubbub-Period"
#: The header that says for how many reports a nonce is asked for; one if it is not there.
REPORTS_HEADER = "Hubbub-Reports"
#: The header that says which part of a crowd a body is: its number (the first is 1), how many, and items of them all.
PART_HEADER = "Hubbub-Part"
_PART = re.compile("([1-9][0-9]{0,5})/([1-9][0-9]{0,5})/([1-9][0-9]{0,11})")
#: Statuses that are final if they are the collector's own.
_FINAL: dict[int, Verdict] = {409: "refused", 413: "too large", 422: "refused"}
#: Bytes of an answer that are read, and characters of it that are repeated in logs.
_LONGEST_ANSWER, _LONGEST_QUOTE = 100_000, 300
#: The longest that a collector may ask us to wait, in seconds.
_LONGEST_WISH = 3600.0


class Answer(NamedTuple):
    """What became of a batch: the verdict, the status, a few words for the log, and the seconds to wait if asked."""

    verdict: Verdict
    status: int
    words: str
    wait: float


def service_address(url: str) -> SplitResult:
    """The parts of an address that can be connected to, or `Refused`."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            parts.hostname.encode("idna")  # as the resolver will; "collector..example" cannot be
            return parts
    except ValueError:  # brackets or a port that are none, or a name that no resolver takes
        pass
    raise Refused(f"{url!r} is not the address of a service; one looks like https://collector.example.")


def connect(address: SplitResult, timeout: float) -> http.client.HTTPConnection:
    """A connection that is opened when it is first used."""
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    assert address.hostname is not None
    return kind(address.hostname, address.port, timeout=timeout)


def post(
    connection: http.client.HTTPConnection,
    address: SplitResult,
    route: str,
    body: bytes,
    token: str,
    batch: str,
    *,
    part: str = "",
    labels: str = "",
    period: str = "",
) -> tuple[Answer, bool]:
    """Send a batch, or `part` of it, and judge the answer; also, whether the connection may be used again.

    `labels` and `period` say which stratum it belongs to (`hubbub.protocol.strata`).
    The answer has to be there within the connection's timeout, in whole.
    """
    told = {PART_HEADER: part, LABELS_HEADER: labels, PERIOD_HEADER: period}
    response, said = _exchange(connection, address, route, body, token, batch, told)
    verdict = judge(response.status, response.getheader("Content-Type", ""), said, batch)
    wish = response.getheader("Retry-After", "")
    wait = min(float(wish), _LONGEST_WISH) if wish.isdecimal() else 0.0  # a date counts as no wish
    answer = Answer(verdict, response.status, _quoted(response, said), wait)
    return answer, response.isclosed() and not response.will_close


def ask_nonce(address: SplitResult, task: str, token: str, timeout: float) -> str:
    """A nonce for one report of the task with this digest; `Refused` if the collector does not hand one out now."""
    asked, connection = secrets.token_hex(16), connect(address, timeout)
    try:
        response, said = _exchange(connection, address, f"/v1/tasks/{task}/nonces", b"", token, asked, {})
        reason = f"it answered {_quoted(response, said)}"
        answer = json.loads(said) if response.status == 200 else None
    except (OSError, ValueError, RecursionError, http.client.HTTPException) as problem:
        answer, reason = None, str(problem) or type(problem).__name__
    finally:
        connection.close()
    # As with batches, only who repeats what was asked is the collector.
    nonce = answer.get("nonce") if isinstance(answer, dict) and answer.get("batch") == asked else None
    if not isinstance(nonce, str) or not batch_named(nonce):
        raise Refused(
            f"Seeds of this task come from the collector, which handed out none ({reason}): report again later."
        )
    return nonce


def _exchange(
    connection: http.client.HTTPConnection,
    address: SplitResult,
    route: str,
    body: bytes,
    token: str,
    batch: str,
    told: Mapping[str, str],
) -> tuple[http.client.HTTPResponse, bytes]:
    """Send a body, with what is told beside it; the answer, empty if not all of it came."""
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/octet-stream",
        BATCH_HEADER: batch,
        **{name: value for name, value in told.items() if value},
    }
    connection.request("POST", f"{address.path.rstrip('/')}{route}", body, headers)
    with in_time(connection):
        response = connection.getresponse()
        said = response.read(_LONGEST_ANSWER)
    return response, b"" if response.length else said


def _quoted(response: http.client.HTTPResponse, said: bytes) -> str:
    return f"{response.status}: {said[:_LONGEST_QUOTE].decode('utf-8', 'replace')}"


@contextmanager
def in_time(connection: http.client.HTTPConnection) -> Iterator[None]:
    """Read an answer within the connection's timeout: somebody on the way may send a byte at a time for days.

    When the time is over the connection ends, whatever has come of the answer.
    """
    sock = connection.sock
    assert connection.timeout is not None

    def hang_up() -> None:
        with suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # below TLS, which would want to say goodbye

    timer = threading.Timer(connection.timeout, hang_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def batch_named(header: str) -> str:
    """The batch's id in a header that was received, "" if it is none."""
    return header if _BATCH_ID.fullmatch(header) else ""


def part_named(number: int, parts: int, total: int) -> str:
    """What a header says of a part, the first being number 0."""
    return f"{number + 1}/{parts}/{total}"


def part_in(header: str) -> tuple[int, int, int] | None:
    """Number, parts and total in a header that was received, None if they are none."""
    found = _PART.fullmatch(header)
    if found is None:
        return None
    number, parts, total = (int(each) for each in found.groups())
    return (number - 1, parts, total) if number <= parts <= total else None


def judge(status: int, media: str, body: bytes, batch: str) -> Verdict:
    """What an answer says about a batch; "later" unless it is the collector's own."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return "later"
    if not isinstance(said, dict) or said.get("batch") != batch:
        return "later"
    kind = media.partition(";")[0].strip().lower()
    if status == 200 and kind == "application/json" and type(said.get("accepted")) is int:
        return "taken"
    if kind == "application/problem+json" and said.get("status") == status:
        if status == 429 and isinstance(said.get("begins"), str):
            return "early"
        return _FINAL.get(status, "later")
    return "later"
