"""What the sampled audit looks at: neighbours that are easy to tell apart, the seeds they are told apart under, and a
narrower instance of tasks whose reports are too long to draw thousands of in seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from pydantic import ValidationError

from hubbub.checks.effort import affordable_tests
from hubbub.checks.worlds import Plain, ends, full_records
from hubbub.mechanisms.shared.hashed import Hashed
from hubbub.model.keys import Keys
from hubbub.protocol.task import Task

#: What is tested: a name, two neighbours, and the public seed that is held fixed (None: fresh ones).
Test = tuple[str, tuple[Plain, Plain], int | None]

#: Buckets of a narrower instance, and keys at least.
_NARROW = 8
#: How far out of range values are, in lengths of the range.
_FAR = 7


def hash_is_delta(task: Task) -> bool:
    """Whether delta is the probability of a bad hash function: then nothing is promised for a seed that is given."""
    return task.guarantee.delta > 0 and isinstance(task.mechanism, Hashed)


def narrow_task(task: Task) -> tuple[Task, str]:
    """A task that can be sampled in seconds, and in what it differs: itself, or the same with fewer buckets or keys.

    The class of the mechanism and all its other parameters are kept. Keys stay enough for two full records.
    """
    mechanism = task.mechanism
    if affordable_tests(task):
        return task, ""
    for name, fewest in (("buckets", _NARROW), ("size", max(_NARROW, 2 * mechanism.max_entries))):
        own = getattr(mechanism, name, 0)
        if own <= fewest:
            continue
        changes = {name: fewest}
        keys = task.keys
        if name == "size":
            listed = keys.model_dump(exclude_none=True)
            few = {"vocabulary": keys.vocabulary[:fewest]} if keys.vocabulary else {"size": fewest}
            keys = Keys(**listed | few)
            if getattr(mechanism, "frequencies", None):
                changes["frequencies"] = mechanism.frequencies[:fewest]  # type: ignore[attr-defined]
        with suppress(ValidationError):
            narrow = type(mechanism)(**mechanism.model_dump() | changes)
            smaller = task.model_copy(update={"mechanism": narrow, "keys": keys})
            if affordable_tests(smaller):
                what = "buckets" if name == "buckets" else "keys"
                return Task(
                    **smaller.model_dump() | {"mechanism": narrow}
                ), f"{fewest} {what} instead of {own:,}"
    return task, ""


def planned_tests(task: Task, seeds: int) -> list[Test]:
    """Every pair under each of the fixed seeds, and the first one under fresh seeds (None), too; if there are seeds.

    Records that are too long and values that are out of range are looked at under the first seed alone.
    """
    seeded = task.mechanism.layout.fields[0].limit > 1
    fresh: list[Test] = [
        (f"{name}, fresh seeds", (one, two), None) for name, one, two in telling_pairs(task, 0)
    ]
    edges = [(name, (one, two)) for name, one, two in edge_pairs(task, 0)]
    if hash_is_delta(task):
        return [*fresh, *((f"{name}, fresh seeds", pair, None) for name, pair in edges)][
            : affordable_tests(task)
        ]
    if affordable_tests(task) < 3:
        seeds = 1
    tests: list[Test] = fresh[:1] if seeded else []
    for first in range(seeds if seeded else 1):
        tests += [
            (f"{name}, public seed {first}", (one, two), first)
            for name, one, two in telling_pairs(task, first)
        ]
        if first == 0:
            tests += [(f"{name}, public seed 0", pair, 0) for name, pair in edges]
    return tests[: affordable_tests(task)]


def telling_pairs(task: Task, seed: int) -> Iterator[tuple[str, Plain, Plain]]:
    """Neighbouring records that are easy to tell apart for somebody who knows the hash function of `seed`."""
    top, bottom = ends(task)
    choices = list(full_records(task, seed))
    _, first, second = choices[0]
    full = dict.fromkeys(first, top)
    unit, signed = task.guarantee.unit, task.scale.kind != "set"
    if unit == "record":
        for name, one, two in choices:
            if two:
                yield f"full records, {name}", dict.fromkeys(one, top), dict.fromkeys(two, top)
        yield "a full record against an empty one", full, {}
        if signed:
            yield "the same keys with opposite values", full, dict.fromkeys(first, bottom)
    elif unit == "entry":
        yield "one key, there or not", {first[0]: top}, {}
        if len(first) > 1:
            yield "a full record without its first key", full, dict.fromkeys(first[1:], top)
        if signed:
            yield "one value from end to end", full, {**full, first[0]: bottom}
        if task.mechanism.limits_entries and second:
            yield "a record that is too long by one key", {second[0]: top, **full}, full
    else:
        yield from _as_far_as_protected(task, choices[-1][1], first)


def _as_far_as_protected(
    task: Task, together: Sequence[str], apart: Sequence[str]
) -> Iterator[tuple[str, Plain, Plain]]:
    """Unit l1: keys that share a bucket as far as possible, and keys that do not."""
    reach, (top, bottom) = float(task.guarantee.distance or 0), ends(task)
    if task.scale.kind == "set":
        for name, keys in (("in one bucket", together), ("in several buckets", apart)):
            yield f"as many keys as are protected, {name}", dict.fromkeys(keys[: int(reach)], 1.0), {}
        return
    far = max(top, bottom, key=abs)
    count = max(1, min(int(reach / abs(far)), len(together)))
    for name, keys in (
        ("as far from nothing as is protected", together[:count]),
        ("a little of every key", apart),
    ):
        yield name, dict.fromkeys(keys, far * min(1.0, reach / (len(keys) * abs(far)))), {}
    yield "one value moved as far as is protected", {apart[0]: bottom}, {apart[0]: min(top, bottom + reach)}


def edge_pairs(task: Task, seed: int) -> Iterator[tuple[str, Plain, Plain]]:
    """Neighbours that are much too long, or whose values are far out of range on both sides."""
    mechanism, unit = task.mechanism, task.guarantee.unit
    (top, bottom), (_, first, _) = ends(task), next(iter(full_records(task, seed)))
    long = next(iter(full_records(task, seed, 2 * mechanism.max_entries + 1)))[1]
    if len(long) > mechanism.max_entries and not mechanism.refuses_longer:
        everything = dict.fromkeys(long, top)
        if unit == "record":
            yield "a record with more than twice the entries against an empty one", everything, {}
        elif unit == "entry":
            yield (
                "a record with more than twice the entries, and one less",
                everything,
                dict.fromkeys(long[1:], top),
            )
    if task.scale.kind != "set":
        above, below = top + _FAR * (top - bottom), bottom - _FAR * (top - bottom)
        if unit == "record":
            yield "values far out of range", dict.fromkeys(first, above), dict.fromkeys(first, below)
        elif unit == "entry":
            yield "a value far out of range", {first[0]: above}, {first[0]: below}
        else:
            reach = float(task.guarantee.distance or 0)
            yield "a value far below the range", {first[0]: below}, {first[0]: min(top, bottom + reach)}
            yield "a value far above the range", {first[0]: above}, {first[0]: max(bottom, top - reach)}
