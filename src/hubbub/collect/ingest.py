"""Uploads: examine a batch, append it to the log, and only then acknowledge it.

What is cheap to check is checked first: token, task, batch id and length, before a byte of the body is
read. When the store is behind, senders are told to come back. Uploads are most of what the service does, so they are
answered before the web framework has looked at them (`hubbub.collect.intake`), with bytes put together by hand.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from starlette.types import Receive

from hubbub.collect.clock import Clock
from hubbub.collect.groups import Groups, TooSlow
from hubbub.collect.intake import QUICK, Intake, Room, bearer_in, length_in, named_batch
from hubbub.collect.keypair import KeyPair
from hubbub.collect.keyring import KeyRing
from hubbub.collect.metrics import Metrics
from hubbub.collect.mint import Mint
from hubbub.collect.problems import Problem, busy, unauthorized
from hubbub.collect.quotas import Quota
from hubbub.collect.settings import Settings
from hubbub.collect.snapshots import period_now
from hubbub.collect.store import Store, Unavailable
from hubbub.collect.tokens import Grant, Role, Tokens, allows
from hubbub.collect.writing import BAD_NONCE, Arrival, Collected, Examined, Written, examine
from hubbub.primitives.envelope import EMPTY, unseal
from hubbub.primitives.errors import Refused
from hubbub.protocol.delivery import LABELS_HEADER, PERIOD_HEADER
from hubbub.protocol.files import REPORTS, check_header
from hubbub.protocol.sealing import KEY_BYTES, check_sealable, naming_no_key, sealed_width
from hubbub.protocol.strata import prefix_width, stratum_from, text_of
from hubbub.protocol.task import Task

#: Writes batches, many in one transaction.
Writer = Groups[Arrival, Written]

#: What whoever shows no token may do, where the settings let them.
_ANYBODY = Grant(0, "upload")
#: Where a batch says of which stratum it is.
_TOLD = (LABELS_HEADER.lower().encode(), PERIOD_HEADER.lower().encode())
_UNOPENED = "sealed for another key or task, or changed on the way"
_NO_NONCE = (
    "The id of this batch must be a nonce of this service, for as many reports of this task as it has: their seeds "
    "follow from it."
)
#: Seconds after which whoever has sent too much may try again, since another period may have begun.
_LATER = "3600"


def opened(collected: Collected, body: bytes | memoryview, most: int) -> bytes | memoryview:
    """The reports in an envelope, whole ones, good and bad."""
    envelope = unseal(body, "The body", REPORTS)
    if envelope.mechanism != collected.code or envelope.digest != collected.digest:
        try:
            check_header(envelope, collected.task, "The batch")
        except Refused as problem:
            raise Problem(409, "another task", str(problem)) from None
    if envelope.count > most:
        raise Problem(413, "too many reports", f"A batch holds at most {most:,} reports: send several.")
    if not envelope.count or len(envelope.payload) != envelope.count * collected.width:
        raise Refused(
            f"The batch says it holds {envelope.count} reports of {collected.width} bytes, "
            f"but has {len(envelope.payload)} bytes."
        )
    return envelope.payload


def examine_sealed(
    collected: Collected,
    body: bytes,
    most: int,
    keys: KeyPair | KeyRing,
    named: bool = True,
    whole: bool = True,
) -> Examined:
    """The contents of a shuffled crowd: sealed reports, one after another; if `named`, with the name of their key.

    If it is not `whole`, but a part of a crowd, all of its reports may be bad ones, if they are for a key of ours.
    """
    task = collected.task
    if not named:
        body = naming_no_key(task, body)
    if len(body) > most * sealed_width(task):
        raise Problem(413, "too many reports", f"A crowd holds at most {most:,} reports here.")
    if not body:
        raise Refused("The crowd is empty.")
    packed, unopened = keys.open_each(task, body)
    width, label = sealed_width(task), prefix_width(task)
    starts = range(0, len(body), width)
    if len({body[start : start + label] for start in starts}) > 1:
        raise Refused("A crowd holds reports of one period, and this one mixes several.")
    if len({body[start + width - KEY_BYTES : start + width] for start in starts}) > 1:
        raise Refused("A crowd holds reports for one key, and this one mixes several.")
    key = body[-KEY_BYTES:].hex()
    if not len(packed) and (
        whole or key not in keys.names
    ):  # nothing is noted of it, so that it is welcome once the key is the right one
        raise Refused("No report of this crowd can be opened: it was sealed for another key or task.")
    found = examine(collected, packed.tobytes(), dict.fromkeys(unopened, _UNOPENED))
    return replace(found, key=key, label=body[:label].decode("latin-1"))


class Upload(NamedTuple):
    """What is known of an upload before its body has come."""

    collected: Collected
    batch: str
    token: str
    size: int
    #: Number of a part, parts, and items of all of them; of crowds that come in parts.
    part: tuple[int, int, int] | None = None
    #: What the batch says of its stratum.
    labels: str = ""
    period: str = ""
    #: How many reports it may have, by its length, and what its sender may send in all.
    reports: int = 1
    quota: Quota | None = None


def sealed_arrival(upload: Upload, found: Examined, check: bytes) -> Arrival:
    """A shuffled crowd, or a part of one, of the stratum that its items name."""
    collected, task = upload.collected, upload.collected.task
    named = stratum_from(task, found.label.encode("latin-1"))
    labels = text_of(task, named._replace(period=""))
    place = collected.placed(labels, named.period)
    # A crowd is taken whatever its period: where that cannot be, it counts as not told.
    stratum = labels if place.refusal else place.stratum
    if task.labels:
        found = replace(found, label=text_of(task, named))
    about = (period_now(task), found.count, found, stratum)
    return Arrival(collected, upload.batch, found.payload, check, *about)


def too_many(upload: Upload) -> Problem:
    """More than a token may send in this period; if there is no other, for good."""
    assert upload.quota is not None
    most, task = upload.quota.most, upload.collected.task
    detail = f"A token may send {most:,} reports of this task"
    if task.period == "once":
        return Problem(422, "too many reports", f"{detail}, and this one has sent them.")
    return Problem(429, "busy", f"{detail} in a {task.period}: send this later.", {"Retry-After": _LATER})


def _too_early(refusal: str, begins: datetime.date) -> Problem:
    """Of a period that has not begun. If our clock is behind, the batch is good: it must not be refused for good."""
    detail = f"{refusal} It is not taken now: send it again later."
    return Problem(429, "not begun", detail, {"Retry-After": _LATER}, begins=begins.isoformat())


class Uploads(Intake[Upload]):
    """The route for batches of reports (or shuffled crowds)."""

    def __init__(
        self,
        tasks: dict[str, Task],
        settings: Settings,
        tokens: Tokens,
        store: Store,
        writer: Writer,
        metrics: Metrics,
        room: Room,
        *,
        mint: Mint,
        clock: Clock,
        keys: KeyRing | None = None,
        named: bool = True,
        damaged: Mapping[str, str] | None = None,
    ) -> None:
        """With `keys`, bodies are shuffled crowds of sealed reports, which name their key unless told otherwise.

        `damaged` names tasks for which nothing is taken now, and says why.
        """
        super().__init__(settings, room)
        self._tasks = {
            digest: Collected(task, clock.days, settings.retention) for digest, task in tasks.items()
        }
        self._tokens, self._store, self._writer, self._metrics = tokens, store, writer, metrics
        self._keys, self._named, self._damaged = keys, named, {} if damaged is None else damaged
        self._mint = mint
        self._role: Role = "upload" if keys is None else "shuffler"
        self._one_large = asyncio.Lock()

    def answered(self, status: int, seconds: float) -> None:
        self._metrics.uploaded(status, seconds)

    def admit(self, path: str, headers: Mapping[bytes, bytes], sender: str) -> Upload:
        token = bearer_in(headers)
        public = bool(self._strangers) and not token and self._keys is None
        grant = _ANYBODY if public else self._tokens.grant_of(token)
        if grant is None or not allows(grant, self._role):
            raise unauthorized(grant is not None)
        collected = self._tasks.get(path.split("/")[3])
        if collected is None or not grant.covers(collected.name):
            raise Problem(404, "no such task", "No task with this digest is collected here.")
        if collected.name in self._damaged:
            raise busy(503, "This task is damaged and waits for repair: send this batch again later.")
        if self._keys is not None:
            check_sealable(collected.task)
        batch_id = named_batch(headers)
        size = length_in(headers)
        reports = max(1, (size - EMPTY) // collected.width)
        if self._writer.full:
            raise busy(429, "Too many batches are waiting: send this one again in a second.")
        if public and size <= self._largest(collected, token):
            self._strangers.count(sender, reports)
        if self._keys is not None:
            return Upload(collected, batch_id, token, size)
        labels, period = (headers.get(name, b"").decode("latin-1").strip() for name in _TOLD)
        quota = None if public else collected.quota(grant.token, self._settings.reports_per_token)
        return Upload(collected, batch_id, token, size, None, labels, period, reports, quota)

    def submit(self, upload: Upload, body: bytes, done: Callable[[bytes | Exception], None]) -> None:
        if upload.size > self._largest(upload.collected, upload.token):
            raise self._too_large(upload)

        def written(result: Written | Exception) -> None:
            answer: bytes | Exception
            try:
                answer = self._acknowledge(upload, result)
            except Exception as problem:
                answer = problem
            done(answer)

        self._writer.submit(self._bare(upload, body), written)

    async def store(self, upload: Upload, receive: Receive) -> bytes:
        if upload.size > self._largest(upload.collected, upload.token):
            return await self._earlier(upload, self._too_large(upload), receive)
        token, room, body = upload.token, self._room, bytearray()
        try:
            async for part in room.parts(receive, token):
                room.hold(token, len(part))
                body += part
            room.enter(token, 0)
            try:
                return await self._take(upload, body)
            except Problem as problem:
                if problem.status != 413:
                    raise
                return await self._earlier(upload, problem, bytes(body))
            finally:
                room.leave(token, 0)
        finally:
            room.give_back(token, len(body))

    async def _take(self, upload: Upload, body: bytearray) -> bytes:
        """Write a body that has come; the acknowledgement."""
        arrival = await self._arrival(upload, body)
        return self._acknowledge(upload, await self._written(arrival))

    async def _written(self, arrival: Arrival) -> Written | Exception:
        try:
            return await self._writer.done(arrival)
        except (Unavailable, TooSlow) as problem:
            return problem

    def _largest(self, collected: Collected, token: str) -> int:
        """Bytes of a body at most. A batch has no more reports than its sender may send in a period, or in a minute."""
        most, reports = self._settings.largest_body, self._settings.reports_per_token
        if not token:
            reports = self._strangers.most
        elif not reports or self._keys is not None:
            return most
        return min(most, EMPTY + reports * collected.width)

    def _too_large(self, upload: Upload) -> Problem:
        most = self._largest(upload.collected, upload.token)
        detail = f"A body has at most {most:,} bytes: send several batches."
        return Problem(413, "too large", detail, {"Connection": "close"})

    async def _earlier(self, upload: Upload, problem: Problem, body: bytes | Receive) -> bytes:
        """A batch that is too large may have been taken when more was allowed, and its sender has not heard of it.

        A sender that is told 413 cuts its batch in two under new names, and a batch that is stored would be counted
        twice. So what is stored is acknowledged, however large: its bytes are compared by their digest and not kept.
        """
        known = await asyncio.to_thread(self._store.known, upload.collected.name, self._id(upload))
        if known is None:
            raise problem
        check = self._digest(upload)
        if isinstance(body, bytes):
            check.update(body)
        else:
            async for part in self._room.parts(body, upload.token):
                check.update(part)
        return self._acknowledge(upload, (known.outcome(check.digest()), Examined(b"", 0)))

    def _id(self, upload: Upload) -> str:
        """What is stored is known by."""
        return upload.batch

    def _digest(self, upload: Upload) -> hashlib.blake2b:
        """Of all that must be the same when it is sent again; the body is still to be added."""
        told = f"{upload.labels}@{upload.period} ".encode() if upload.labels or upload.period else b""
        return hashlib.blake2b(told, digest_size=16)

    def _acknowledge(self, upload: Upload, result: Written | Exception) -> bytes:
        """What to say of a batch, or `Problem`."""
        if isinstance(result, Exception):
            if isinstance(result, Unavailable | TooSlow):
                raise busy(503, "The store cannot be written now: send this batch again later.") from None
            raise result
        outcome, examined = result
        if outcome == "conflict":
            detail = "This batch id was used for other reports before: make a new id for every batch."
            raise Problem(409, "batch id taken", detail)
        if outcome == "expired":
            detail = (
                "This batch was made so long ago that nobody knows whether it came before: it is not taken."
            )
            raise Problem(409, "too old", detail)
        if outcome == "too many":
            raise too_many(upload)
        rejected, again = examined.rejected, outcome == "repeated"
        self._metrics.stored(upload.collected.name, examined.count, rejected, again)
        if examined.key and outcome == "stored":
            self._metrics.opened(examined.key, examined.count)
        if not rejected:
            said = "true" if again else "false"
            line = f'{{"batch": "{upload.batch}", "accepted": {examined.count}, "rejected": 0, "repeated": {said}}}'
            return line.encode()
        answer: dict[str, Any] = {
            "batch": upload.batch,
            "accepted": examined.count,
            "rejected": rejected,
            "repeated": again,
            "problems": examined.problems,
        }
        if not examined.count:
            detail = examined.refusal or f"None of the {rejected} reports is valid: do not send them again."
            raise Problem(422, "no valid report", detail, **answer)
        return json.dumps(answer).encode()

    async def _arrival(self, upload: Upload, body: bytearray) -> Arrival:
        """A batch that can be written. Large ones are examined here, one at a time, since that takes memory."""
        if len(body) > QUICK or self._keys is not None:
            async with self._one_large:
                return await asyncio.to_thread(self._examine, upload, body)
        return self._bare(upload, bytes(body))

    def _bare(self, upload: Upload, body: bytes | memoryview) -> Arrival:
        """Reports as they came, of the stratum that the batch names."""
        collected, check = upload.collected, self._digest(upload)
        check.update(body)
        reports = opened(collected, body, self._settings.most_reports)
        now, place = period_now(collected.task), collected.placed(upload.labels, upload.period)
        arrival = Arrival(collected, upload.batch, reports, check.digest(), now, stratum=place.stratum)
        arrival.quota = upload.quota
        if collected.task.seed_from == "server":
            handed = self._mint.reports(collected.digest, upload.batch)
            if handed != len(reports) // collected.width:
                arrival.refuse(BAD_NONCE, _NO_NONCE)
        if arrival.examined is None and place.begins is not None:
            raise _too_early(place.refusal, place.begins)
        if arrival.examined is None and place.refusal:
            arrival.refuse(place.reason, place.refusal)
        return arrival

    def _examine(self, upload: Upload, body: bytearray) -> Arrival:
        collected, most = upload.collected, self._settings.most_reports
        if self._keys is None:
            arrival = self._bare(upload, memoryview(body))
            if arrival.examined is None:
                arrival.examined = examine(collected, arrival.reports, batch=arrival.id)
            return arrival
        check = hashlib.blake2b(body, digest_size=16).digest()
        found = examine_sealed(collected, bytes(body), most, self._keys, self._named)
        return sealed_arrival(upload, found, check)
