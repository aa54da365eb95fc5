"""From a shuffler to its collector: crowds in parts, each sent until it is acknowledged.

A crowd is stored in its final order, in parts, under one id, before anything of it is sent; so whoever has to send a
part again sends the very same bytes under the same names, and the collector takes each once. Crowds of one part are
batches like any other. Of several parts the last is sent last, and the collector takes it when it has all the others:
then the crowd is counted, and not before (`hubbub.collect.parts`). All parts stay here until that is acknowledged.
"""

from __future__ import annotations

import http.client
import logging
import threading
from urllib.parse import SplitResult

from hubbub.collect.mixer import Crowd, Mixer
from hubbub.protocol.delivery import Answer, connect, part_named, post
from hubbub.protocol.sealing import KEY_BYTES, NO_KEY

_log = logging.getLogger("hubbub.shuffler")

#: Bytes of refused crowds that are kept, in case the collector comes up with the right key; beyond, the oldest go.
MOST_REFUSED = 1 << 28


class Forward:
    """Sends what is in a mixer's store and has been closed."""

    def __init__(self, mixer: Mixer, collector: SplitResult, token: str) -> None:
        self._mixer, self._collector, self._token = mixer, collector, token
        #: Crowds that the collector refused, and their bytes; they are tried again at the next start.
        self.refused: dict[str, int] = {}
        self._taken: dict[str, set[int]] = {}
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Send no more after the part that is under way."""
        self._stopping.set()

    def send_all(self) -> tuple[list[Crowd], bool, float]:
        """Send all crowds: those that arrived, whether all did, and the seconds that the collector asks to wait."""
        arrived: list[Crowd] = []
        delivered, asked = True, 0.0
        for batch in [each for each in self._mixer.outgoing() if each not in self.refused]:
            crowd = self._mixer.crowd(batch)
            try:
                answer = self._send(crowd)
            except (OSError, http.client.HTTPException) as problem:
                _log.warning("the collector does not answer: %s", type(problem).__name__)
                return arrived, False, asked
            if answer is None:
                return arrived, False, asked
            words = f"a crowd of {crowd.reports} reports of task {crowd.task.hex()}"
            if answer.verdict == "taken":
                self._mixer.forget(batch)
                self._taken.pop(batch, None)
                arrived.append(crowd)
                _log.info("forwarded %s", words)
            elif answer.verdict in ("later", "early"):
                # It may be put right by somebody, and nobody else may say that it is taken.
                why = ""
                if answer.status == 404 and crowd.parts > 1:
                    why = (
                        " (perhaps it is older than this shuffler, and takes no crowds in parts: upgrade it)"
                    )
                _log.warning("the collector answers %d to %s%s", answer.status, words, why)
                delivered, asked = False, max(asked, answer.wait)
            elif answer.verdict == "too large" and self._mixer.cut(batch):
                self._taken.pop(batch, None)
                _log.warning("the collector takes smaller bodies only, so the parts are halved of %s", words)
                delivered = False  # they are for the next round
            else:
                # Perhaps it came up with another key: kept, and tried again at the next start.
                self.refused[batch] = self._mixer.outgoing_bytes(batch)
                self._drop_refused()
                _log.error("the collector refuses (%d) %s", answer.status, words)
        return arrived, delivered, asked

    def _send(self, crowd: Crowd) -> Answer | None:
        """Send the parts of a crowd in order; the answer to the last one sent, None if it is time to stop."""
        answer = None
        taken = self._taken.setdefault(crowd.batch, set())
        connection = connect(self._collector, timeout=60)
        try:
            for number in range(crowd.parts):
                if self._stopping.is_set():
                    return None
                if number in taken:
                    continue
                version, payload = _as_sent(crowd, self._mixer.part(crowd.batch, number))
                route = f"/{version}/tasks/{crowd.task.hex()}/shuffled"
                part = part_named(number, crowd.parts, crowd.reports) if crowd.parts > 1 else ""
                answer, again = post(
                    connection, self._collector, route, payload, self._token, crowd.batch, part=part
                )
                if not again:
                    connection.close()  # the next request opens it again
                if answer.verdict != "taken":
                    if number == crowd.parts - 1:  # perhaps it misses some that it had: all of them again
                        taken.clear()
                    return answer
                taken.add(number)
        finally:
            connection.close()
        return answer

    def _drop_refused(self) -> None:
        """Whoever can make the collector refuse crowds must not fill the store with them."""
        while sum(self.refused.values()) > MOST_REFUSED and len(self.refused) > 1:
            oldest = next(iter(self.refused))
            self._mixer.forget(oldest)
            del self.refused[oldest]
            _log.error("a refused crowd is dropped: there are too many of them")


def _as_sent(crowd: Crowd, payload: bytes) -> tuple[str, bytes]:
    """The version of the interface, and the body. Items that name no key travel as they came, without a name.

    So a crowd that was sent before the shuffler knew of names has the same bytes when it is sent again.
    """
    if crowd.parts > 1:
        return "v3", payload
    if not payload.endswith(NO_KEY):
        return "v2", payload
    width = len(payload) // crowd.reports
    items = range(0, len(payload), width)
    return "v1", b"".join(payload[start : start + width - KEY_BYTES] for start in items)
