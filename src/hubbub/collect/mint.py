"""Nonces: the seeds of reports come from here, for tasks that say so, and no sender can choose them.

A nonce is the id that a batch must have, and says for how many reports it is: `20261118-1-RANDOM-CODE`, where the code
authenticates the rest, the task included, with a secret of the store. So nothing has to be kept of what was handed out,
and all processes over one store know each other's. Seeds follow from it (`hubbub.protocol.nonces`), and a batch has as
many reports as the nonce is for, no fewer: whoever does not like some of the seeds can only leave the nonce, or send
reports under them that are not valid, which are dropped.

Those are the ways that are left to choose: have many seeds, and use the best. So what is handed out counts, used or
not, against as many as a token may send in a period (`reports_per_token`), and without a token against what an address
may send in a minute. What is sent counts once more, apart: nonces that were saved up, or those of others, are no way to
send more in one period.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import re
import secrets

from hubbub.collect.store import Store

_NONCE = re.compile("([0-9]{8}-([1-9][0-9]{0,3})-[0-9a-f]{24})-([A-Za-z0-9_-]{22})")


class Mint:
    """Hands out nonces, and knows them again."""

    def __init__(self, store: Store) -> None:
        self._secret = store.fact("nonces", secrets.token_bytes(32))

    def new(self, task: bytes, reports: int) -> str:
        """A nonce for so many reports of the task with this digest."""
        today = datetime.datetime.now(datetime.UTC).date()
        begin = f"{today:%Y%m%d}-{reports}-{secrets.token_hex(12)}"
        return f"{begin}-{self._code(task, begin)}"

    def reports(self, task: bytes, nonce: str) -> int:
        """For how many reports it was handed out; 0 if it was not, or for another task."""
        found = _NONCE.fullmatch(nonce)
        if found is None or not hmac.compare_digest(self._code(task, found[1]), found[3]):
            return 0
        return int(found[2])

    def _code(self, task: bytes, begin: str) -> str:
        code = hmac.digest(self._secret, task + begin.encode(), hashlib.sha256)[:16]
        return base64.urlsafe_b64encode(code).decode().rstrip("=")
