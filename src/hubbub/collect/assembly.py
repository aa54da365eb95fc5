"""The route for crowds that come in parts (`hubbub.collect.parts`)."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping

from hubbub.collect.ingest import Upload, Uploads, examine_sealed, sealed_arrival
from hubbub.collect.parts import Appended, Part, append_part, part_id
from hubbub.collect.problems import Problem, busy
from hubbub.collect.store import Unavailable
from hubbub.collect.writing import Examined
from hubbub.protocol.delivery import PART_HEADER, part_in, part_named
from hubbub.protocol.sealing import KEY_BYTES, sealed_width
from hubbub.protocol.strata import prefix_width

_PART = PART_HEADER.lower().encode()


class Parts(Uploads):
    """Takes a part at a time; each is opened and on disk before it is acknowledged, and counts with the last one."""

    def admit(self, path: str, headers: Mapping[bytes, bytes], sender: str) -> Upload:
        upload = super().admit(path, headers, sender)
        part = part_in(headers.get(_PART, b"").decode("latin-1"))
        if part is None:
            detail = f"The header {PART_HEADER} must say which part this is: its number, how many, and items in all."
            raise Problem(400, "part needed", detail)
        return upload._replace(part=part)

    def _id(self, upload: Upload) -> str:
        assert upload.part is not None
        return part_id(upload.batch, upload.part[0])

    def _digest(self, upload: Upload) -> hashlib.blake2b:
        assert upload.part is not None
        return hashlib.blake2b(part_named(*upload.part).encode() + b" ", digest_size=16)

    async def _take(self, upload: Upload, body: bytearray) -> bytes:
        async with self._one_large:
            try:
                appended, found = await asyncio.to_thread(self._append, upload, bytes(body))
            except Unavailable as problem:
                return self._acknowledge(upload, problem)
        if appended.outcome == "missing":
            raise busy(503, "Other parts of this crowd are missing: send them, and then this one again.")
        if appended.outcome == "full":
            raise busy(503, "Too many crowds wait for their last parts: send this one again later.")
        if appended.outcome in ("conflict", "expired"):
            return self._acknowledge(upload, (appended.outcome, found))
        again = appended.outcome == "repeated"
        if again or appended.counted or appended.rejected:
            self._metrics.stored(upload.collected.name, appended.counted, appended.rejected, again)
            self._metrics.opened(found.key, appended.counted)
        answer = {
            "batch": upload.batch,
            "accepted": found.count,
            "rejected": found.rejected,
            "repeated": again,
        }
        return json.dumps(answer).encode()

    def _append(self, upload: Upload, body: bytes) -> tuple[Appended, Examined]:
        """Open a part and write it."""
        assert upload.part is not None
        collected, task = upload.collected, upload.collected.task
        check = self._digest(upload)
        check.update(body)
        known = self._store.known(collected.name, self._id(upload))
        if known is not None:  # it need not be opened again
            return Appended(known.outcome(check.digest())), Examined(b"", 0)
        assert self._keys is not None
        found = examine_sealed(collected, body, self._settings.most_reports, self._keys, whole=False)
        arrival = sealed_arrival(upload, found, check.digest())
        number, parts, total = upload.part
        kind = body[: prefix_width(task)] + body[-KEY_BYTES:]
        part = Part(arrival.batch(), number, parts, total, len(body) // sealed_width(task), kind)
        return append_part(self._store, part, self._settings.unfinished), found
