"""What a plan costs besides bytes: the server's time and memory, and the device's time, about.

The constants were measured on one ordinary core; a plan needs them to within a factor of two.
"""

from __future__ import annotations

import math

from hubbub.model.keys import LARGEST_BITS, Keys, bits_for
from hubbub.model.mechanism import Goal, Mechanism

#: Microseconds for reading a report, and per addition to a state that fits into a cache, or not.
_READING, _ADDING, _ADDING_FAR = 1.5, 0.005, 0.03
_CACHED = 1 << 25
#: Microseconds for making a single report, interpreted: at least, per hash, and per number in it beyond a few.
_MAKING, _HASHING, _NUMBER, _FEW = 300.0, 4.0, 36.0, 4


def _keys_of(mechanism: Mechanism, goal: Goal) -> Keys:
    """The keys that a task for this goal would have."""
    if goal.open:
        bits = max(2, (goal.keys - 1).bit_length())
        return Keys(kind="wide") if bits > LARGEST_BITS else Keys(kind="folded", bits=bits)
    return Keys(kind="closed", size=goal.keys, bits=_closed_bits(mechanism, goal))


def _closed_bits(mechanism: Mechanism, goal: Goal) -> int:
    return bits_for(goal.keys * (2 if mechanism.sided else 1))


def has_codes(mechanism: Mechanism, goal: Goal) -> bool:
    """Whether there are enough codes for the goal's keys, two for each where a mechanism needs them."""
    return goal.open or _closed_bits(mechanism, goal) <= LARGEST_BITS


def server_seconds(mechanism: Mechanism, goal: Goal) -> float:
    """What a million reports take of one core of the server; where reports are kept, for one key at least."""
    keys = _keys_of(mechanism, goal)
    far = not mechanism.keeps_reports(keys) and 8 * math.prod(mechanism.totals_shape(keys)) > _CACHED
    return _READING + mechanism.report_steps(keys) * (_ADDING_FAR if far else _ADDING)


def state_size(mechanism: Mechanism, goal: Goal) -> str:
    """What the server holds, in words."""
    keys = _keys_of(mechanism, goal)
    if mechanism.keeps_reports(keys):
        return "all reports"
    size = 8 * math.prod(mechanism.totals_shape(keys))
    if size >= 1 << 30:
        return f"{size / 2**30:.3g} GiB"
    return f"{size / 2**20:.3g} MiB" if size >= 1 << 18 else f"{size / 2**10:.3g} KiB"


def device_hashes(mechanism: Mechanism) -> int:
    """Hashes that one report takes."""
    return mechanism.seeds_per_report * mechanism.max_entries


def device_seconds(mechanism: Mechanism) -> float:
    """What one report takes to make, on a device as fast as an ordinary core."""
    more = max(0, len(mechanism.layout.fields) - _FEW)
    return (_MAKING + _HASHING * device_hashes(mechanism) + _NUMBER * more) / 1e6
