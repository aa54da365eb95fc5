"""Which keys the collector has: a shuffler takes only what the collector can open.

An item names the key that it was sealed for, and its sender may write there whatever he likes. Items for keys that
nobody has would wait for ever for a crowd. So the shuffler asks the collector for the names of its keys, remembers them
for times when the collector does not answer, and refuses an item for another key, but never before the collector has
been asked once more: a key that was made a moment ago is in nobody's memory yet.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Sequence
from urllib.parse import SplitResult

from hubbub.collect.mixer import Mixer
from hubbub.protocol.delivery import connect, in_time
from hubbub.protocol.sealing import KEY_BYTES, NO_KEY

#: Seconds between two questions at least, whoever wants to know.
APART = 1.0
#: Bytes of an answer that are read, and seconds that it may take.
_LONGEST, _PATIENCE = 1 << 16, 10.0


class Unanswered(OSError):
    """The collector does not say which keys it has."""


class KnownKeys:
    """The names of the collector's keys, as it said them last."""

    def __init__(self, mixer: Mixer, collector: SplitResult) -> None:
        self._mixer, self._collector = mixer, collector
        self._asked = -APART
        #: Names that items may have; the one that names no key is from a time when items named none.
        self.names = frozenset([NO_KEY, *mixer.key_names()])

    @property
    def any(self) -> bool:
        """Whether the collector has ever said a key."""
        return len(self.names) > 1

    def ask(self) -> None:
        """Ask the collector; `Unanswered` if it does not say, and then nothing changes."""
        connection = connect(self._collector, _PATIENCE)
        try:
            connection.request("GET", f"{self._collector.path.rstrip('/')}/v1/key")
            with in_time(connection):
                answer = connection.getresponse()
                said = answer.read(_LONGEST)
            names = _names_in(said) if answer.status == 200 else []
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as problem:
            raise Unanswered(
                f"the collector cannot be asked for its keys: {type(problem).__name__}"
            ) from None
        finally:
            connection.close()
        if not names:
            raise Unanswered("the collector does not say which keys it has")
        known = frozenset([NO_KEY, *names])
        if known != self.names:
            self._mixer.remember_keys(names)
            self.names = known

    def ask_for_all(self, waiting: Sequence[object]) -> list[None]:
        """Ask once for all who wait. Whoever makes names up must not make the collector answer all day long."""
        time.sleep(max(0.0, self._asked + APART - time.monotonic()))
        self._asked = time.monotonic()
        self.ask()
        return [None] * len(waiting)


def _names_in(answer: bytes) -> list[bytes]:
    """The names in an answer: of all keys that open reports, or of the one that an older collector tells."""
    said = json.loads(answer)
    if not isinstance(said, dict):
        return []
    names = said.get("opens", [said.get("id")])
    found = (
        [bytes.fromhex(name) for name in names if isinstance(name, str)] if isinstance(names, list) else []
    )
    return [name for name in found if len(name) == KEY_BYTES and name != NO_KEY]
