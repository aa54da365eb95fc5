"""How many people there are at least, told by the number of their messages.

Nobody counts the people whose devices send several messages each: the shuffler sees senders and must not keep them, and
the collector sees none. But n people send N ~ Poisson(n M) messages in all, whatever their records are, and many
messages are improbable if people are few. `people_among(N, M)` is the largest n for which
P(Poisson(n M) >= N) <= `FAILURE`.

Theorem. The bound exceeds the true number with probability at most `FAILURE`, and that does not depend on records.

Proof. Let N(n) be the smallest N for which people_among(N) >= n. If n is the true number, the bound exceeds it only if
N >= N(n + 1). By the choice of N(n + 1), Poisson((n + 1) M) reaches it with probability at most `FAILURE`, and
Poisson(n M), which is smaller in law, with no more.

So a guarantee (epsilon, delta) for a crowd of `people_among(N, M)` people holds for the crowd with delta + `FAILURE`.
It counts the people who send as the task says: somebody who sends more than that looks like many.
"""

from __future__ import annotations

import math
from fractions import Fraction

from hubbub.primitives.errors import Refused
from hubbub.primitives.rare_counts import poisson_at_least

#: The probability that there are fewer people than `people_among` says.
FAILURE = 1e-9
#: Rounding of the tail, in favour of fewer people.
_SLACK = 1e-6


def people_among(reports: int, messages: Fraction) -> int:
    """So many people at least have sent `reports` messages, `messages` of them each on average; 0 if nobody knows."""
    most = math.floor(reports / messages)
    low, high = 0, most + 1  # that Poisson of the mean reports or more reaches it is not improbable at all
    while high - low > 1:
        middle = (low + high) // 2
        if float(poisson_at_least(reports, float(middle * messages))) <= FAILURE * (1 - _SLACK):
            low = middle
        else:
            high = middle
    return low


def reports_of(people: int, messages: Fraction) -> int:
    """The smallest number of messages that shows so many people."""
    if people < 1:
        raise Refused(f"A crowd has at least 1 person, not {people}.")
    low = math.floor(people * messages)
    high = low + 1
    while people_among(high, messages) < people:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if people_among(middle, messages) >= people else (middle, high)
    return high


def most_of_one(messages: Fraction) -> int:
    """So many messages of one device have to be taken, wherever their number is limited.

    What is refused changes the law that the guarantee rests on. M + 8 sqrt(M) + 8 are exceeded with a probability below
    1e-14 by each device (the tests add up the tail), so for n people delta grows by at most n times that.
    """
    return math.ceil(messages + 8 * math.sqrt(messages) + 8)
