"""One record at a time, and many: what a mechanism does with a record becomes a loop over all of them.

A randomizer is written for one record. `per_record` makes the loop; `run_kernel` runs it interpreted, asking the coins
flip by flip, or compiled, on a buffer of random words. The compiled loop stops before a record when few words are left,
and goes on with more; should one record need more than the reserve, it is run again on the *same* words followed by
fresh ones, so that running out never changes the law of a report, and the reserve grows.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np

from hubbub.primitives.coins import Coins
from hubbub.primitives.kernel import Kernel, primitive, use_compiled
from hubbub.primitives.samplers import Tape, TapeEmpty

#: Words that must be left on the tape when a record begins, at first.
RESERVE = 1 << 12
#: Words that are drawn at a time.
MOST_WORDS = 1 << 22


def _native_begin() -> Any:
    import numba

    @numba.njit(nogil=True)
    def begin_record(tape: Any, index: Any) -> Any:
        words, cursor = tape
        cursor[1] = cursor[0]
        cursor[2] = index
        cursor[3] = len(words) - cursor[0] < cursor[4]
        return cursor[3] == 0

    return begin_record


@primitive(_native_begin)
def begin_record(tape: Tape, index: int) -> bool:
    """Note where record `index` begins on the tape; False: stop before it, the tape is about to end."""
    return True


def _each(tape: Any, start: int, count: int, records: Any, shape: Any, reports: Any) -> None:
    for i in range(start, count):
        if not begin_record(tape, i):
            return
        respond(tape, i, records, shape, reports)  # type: ignore[name-defined]  # noqa: F821


def _each_with_room(tape: Any, start: int, count: int, records: Any, shape: Any, reports: Any) -> None:
    # Made anew whenever the loop is entered: a record that is begun again finds nothing of its first attempt.
    room = prepare(shape)  # type: ignore[name-defined]  # noqa: F821
    for i in range(start, count):
        if not begin_record(tape, i):
            return
        respond(tape, i, records, shape, room, reports)  # type: ignore[name-defined]  # noqa: F821


def per_record(respond: Callable[..., None]) -> Kernel:
    """The kernel that does respond(tape, i, records, shape, reports) for every record i.

    `records` and `shape` are named tuples: the records of a batch, and what the randomizer needs of its parameters. It
    writes its answer to reports[i], after the last coin it flips if it adds to what is there.
    """
    return _loop(_each, respond, {})


def per_record_in(prepare: Kernel) -> Callable[[Callable[..., None]], Kernel]:
    """The same for respond(tape, i, records, shape, room, reports) with room to work in, which prepare(shape) makes."""
    return lambda respond: _loop(_each_with_room, respond, {"prepare": prepare})


def _loop(template: Any, respond: Callable[..., None], more: dict[str, Any]) -> Kernel:
    scope = {**globals(), **more, "respond": Kernel(respond, inline=True)}
    loop = types.FunctionType(template.__code__, scope, respond.__name__)
    loop.__module__, loop.__doc__ = respond.__module__, respond.__doc__
    return Kernel(loop)


def run_kernel(batch: Kernel, coins: Coins, count: int, records: Any, shape: Any, reports: Any) -> None:
    """Run a kernel of `per_record` over records 0 .. count - 1, compiled when worth it."""
    if not use_compiled(count) or not hasattr(coins, "words"):
        batch(coins, 0, count, records, shape, reports)
        return
    step = batch.compiled(type(records), type(shape))
    words, cursor = coins.words(4 * count + 2 * RESERVE), np.array([0, 0, 0, 0, RESERVE])
    used = 0
    while True:
        try:
            step((words, cursor), int(cursor[2]), count, records, shape, reports)
            if not cursor[3]:
                return
        except TapeEmpty:
            # One record alone needs more than the reserve. An exception leaves compiled code with its arrays
            # never freed, so this must stay rare.
            cursor[4] *= 4
        done = int(cursor[2])
        used += int(cursor[1])
        wanted = 11 * used * (count - done) // (10 * max(done, 1))
        drawn = max(min(max(wanted, len(words)), MOST_WORDS), 2 * int(cursor[4]))
        words = np.concatenate([words[cursor[1] :], coins.words(drawn)])
        cursor[:2] = 0
        cursor[3] = 0
