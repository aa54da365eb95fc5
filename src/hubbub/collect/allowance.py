"""How much one person may send, where every device has a token of its own.

A shuffler cannot tell people apart: whoever has the devices' token may send as many items as he likes, and each looks
like another person's. With personal tokens it can, and takes at most a stated number of items per token, task and
period. It counts in memory and under keyed hashes of tokens, so that nothing on disk links tokens to items, or says
that a token was used; a restart begins to count anew.

The items of one request and period are taken all or none, so a limit does not cut the messages of a device in two. But
devices whose messages are too many would fall silent, and the number of messages would no longer be Poisson, which the
guarantee rests on. So the limit is high enough for all that devices practically send (`check_limit`).
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from hubbub.collect.mixer import Limit
from hubbub.primitives.errors import Refused
from hubbub.privacy.people import most_of_one
from hubbub.protocol.periods import PERIOD_BYTES
from hubbub.protocol.task import Task

#: Pairs of token and period that are counted; beyond, the oldest are forgotten.
_MOST = 1_000_000
#: Who sends, for which task and period.
_Mark = tuple[bytes, bytes, bytes]


def check_limit(tasks: Iterable[Task], most: int, name: str) -> None:
    """`Refused` if an honest device may have more messages than can be taken at once: it would be cut off or in two."""
    for task in tasks:
        mean = task.mean_messages
        if mean is not None and most < (least := most_of_one(mean)):
            raise Refused(
                f"{name} must be at least {least:,} for task {task.name!r}: a device sends {float(mean):g} messages on "
                "average, sometimes many more, and what is promised holds if all of them are taken."
            )


class Allowance:
    """Items by token, task and period."""

    def __init__(self, most: int) -> None:
        if most < 1:
            raise Refused(f"A token is for at least 1 item, not {most}.")
        self.most = most
        self._secret = secrets.token_bytes(32)
        self._used: Counter[_Mark] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def granting(self, task: Task, tokens: Sequence[str]) -> Iterator[Limit]:
        """A limit for requests with these tokens; what was granted is taken back if they are not kept after all."""
        granted: Counter[_Mark] = Counter()
        marks = [
            hashlib.blake2b(token.encode(), key=self._secret, digest_size=16).digest() for token in tokens
        ]
        width = PERIOD_BYTES[task.period]  # whatever the labels: they do not make one person many

        def limit(place: int, fresh: dict[bytes, bytes]) -> dict[bytes, bytes]:
            counts = Counter(item[:width] for item in fresh.values())
            good = set()
            for period, count in counts.items():
                mark = (marks[place], task.digest, period)
                if self._used[mark] + granted[mark] + count <= self.most:
                    granted[mark] += count
                    good.add(period)
            return {name: item for name, item in fresh.items() if item[:width] in good}

        with self._lock:
            yield limit
            self._used.update(granted)
            while len(self._used) > _MOST:
                del self._used[next(iter(self._used))]
