"""The route that hands out nonces (`hubbub.collect.mint`), to whoever may send reports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from starlette.types import Receive

from hubbub.collect.ingest import Upload, Uploads, too_many
from hubbub.collect.problems import Problem, busy
from hubbub.collect.quotas import Quota, granted
from hubbub.collect.store import Unavailable
from hubbub.protocol.delivery import REPORTS_HEADER

#: Reports that one nonce may be for.
_MOST = 1000
_REPORTS = REPORTS_HEADER.lower().encode()


class Handout(Uploads):
    """Answers with a nonce, for one report or for as many as the request says."""

    def admit(self, path: str, headers: Mapping[bytes, bytes], sender: str) -> Upload:
        upload = super().admit(path, headers, sender)
        if upload.collected.task.seed_from == "device":
            raise Problem(
                409, "no nonces", "Devices draw the seeds of this task themselves: no nonce is needed."
            )
        asked = headers.get(_REPORTS, b"1")
        if not asked.isdigit() or len(asked) > 4 or not 1 <= int(asked) <= _MOST or upload.size:
            detail = (
                f"The header {REPORTS_HEADER} says for how many reports, 1 to {_MOST:,}; there is no body."
            )
            raise Problem(422, "not understood", detail)
        if upload.reports < int(asked) and not upload.token:
            self._strangers.count(sender, int(asked) - upload.reports)
        return upload._replace(reports=int(asked))

    async def store(self, upload: Upload, receive: Receive) -> bytes:
        if upload.quota is not None:
            try:
                allowed = await asyncio.to_thread(self._granted, upload, upload.quota)
            except Unavailable:
                raise busy(503, "The store cannot be written now: ask again later.") from None
            if not allowed:
                raise too_many(upload)
        nonce = self._mint.new(upload.collected.digest, upload.reports)
        answer = {"batch": upload.batch, "nonce": nonce, "reports": upload.reports}
        return json.dumps(answer).encode()

    def _granted(self, upload: Upload, quota: Quota) -> bool:
        with self._store.writing() as connection:
            number = self._store.numbers(connection, {upload.collected.name})[upload.collected.name][0]
            # What is handed out is counted apart from what is sent: under the negative number of the token.
            return granted(
                self._store, connection, number, quota._replace(token=-quota.token), upload.reports
            )
