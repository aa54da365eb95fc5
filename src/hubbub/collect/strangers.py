"""Uploads without a token: a page that everybody can read has no secret to show.

With the setting `public_reports`, whoever shows no token may send so many reports a minute from one address. That
stops accidents and the careless, and nobody who has many addresses: what is open to everybody can be flooded with
made-up reports, and no rate limit can tell them from true ones. Addresses are in memory for a minute and nowhere
else. Those of IPv6 count by their first 64 bits, since whoever has one of these has all.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter

from hubbub.collect.problems import Problem

_MINUTE = 60.0
#: Addresses that are kept at a time; when there are more, the others wait for the next minute.
_MOST = 1 << 17


class Strangers:
    """How many reports each address has sent in this minute."""

    def __init__(self, most: int) -> None:
        """`most` reports a minute; 0: nobody may send without a token."""
        self.most = most
        self._sent: Counter[str] = Counter()
        self._over = 0.0

    def __bool__(self) -> bool:
        return self.most > 0

    def count(self, address: str, reports: int) -> None:
        """Count reports that an address is about to send; `Problem`, and nothing is counted, if that is too many."""
        loop = asyncio.get_running_loop()
        if not self._sent:
            self._over = loop.time() + _MINUTE
            loop.call_at(self._over, self._sent.clear)
        who = _group(address)
        crowded = who not in self._sent and len(self._sent) >= _MOST
        if crowded or self._sent[who] + reports > self.most:
            detail = (
                f"Without a token, an address may send {self.most:,} reports a minute: send this again later."
            )
            wait = max(1, round(self._over - loop.time()))
            raise Problem(429, "busy", detail, {"Retry-After": str(wait)})
        self._sent[who] += reports


def _group(address: str) -> str:
    """What counts as one sender."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # a socket that is a file has none
        return ""
    if parsed.version == 4:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
