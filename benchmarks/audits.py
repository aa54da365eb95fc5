"""The audits against planted faults, and against sound mechanisms: the tables of docs/audit.md, and false alarms.

    python benchmarks/audits.py tables              both tables, as they stand in docs/audit.md
    python benchmarks/audits.py power               how often a fault of the stated excess is caught
    python benchmarks/audits.py alarms PART PARTS   200 sampled audits of every sound mechanism, at level 0.99, in parts

The catalogue is tests/checks/faults.py. An audit at level 0.99 may refute a sound mechanism once in 100 times, that is
twice in 200; what is counted here shows how far below that it stays.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "checks"))

from faults import FAULTS, SCALED, Fault, audited_by_sampling, audited_exactly, figure, louder

from hubbub.checks.audit import sampled_audit
from hubbub.checks.conformance import task_for
from hubbub.checks.pairs import planned_tests
from hubbub.checks.sampling import judge_task
from hubbub.mechanisms.coco import CoCo
from hubbub.mechanisms.collision import Collision
from hubbub.mechanisms.hadamard import HadamardResponse
from hubbub.mechanisms.privkv import PrivKV
from hubbub.mechanisms.repeated import Repeated
from hubbub.mechanisms.sampled import Sampled
from hubbub.mechanisms.sketch_response import SketchResponse
from hubbub.mechanisms.sparse_sum import SparseSum
from hubbub.model.mechanism import Mechanism
from hubbub.primitives.coins import InsecureCoins, SimulatedSeeds

#: Shares by which weights are too large, from obvious to hardly anything.
_EXACT = (0.3, 0.1, 0.07, 0.03, 0.01, 1e-3, 1e-5, 1e-7)
_SAMPLED = (1.0, 0.5, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03)
_REPETITIONS, _LEVEL, _FEW_SAMPLES = 200, 0.99, 4_400
_POWER_RUNS = 20

#: What the planner may choose besides the mechanisms that faults are planted in.
PLANNED: dict[str, Mechanism] = {
    "sparse_sum, unit l1 with delta": SparseSum(
        epsilon=1, max_entries=16, unit="l1", distance=16.0, delta=1e-3, family="prf", buckets=2
    ),
    "sparse_sum, unit l1 with delta, signed": SparseSum(
        epsilon=1,
        max_entries=16,
        values="signed",
        unit="l1",
        distance=16.0,
        delta=1e-3,
        family="prf",
        round_at="bins",
        buckets=2,
    ),
    "sparse_sum, unit entry, sets, prf": SparseSum(
        epsilon=1, max_entries=16, unit="entry", family="prf", buckets=2
    ),
    "collision, events, prf": Collision(epsilon=1, max_entries=4, values="signed", family="prf"),
    "coco, mean": CoCo(epsilon=1, max_entries=4, target="mean"),
    "coco, conditional, prf": CoCo(epsilon=1, max_entries=4, target="conditional", family="prf"),
    "sampled, signed": Sampled(epsilon=1, max_entries=4, values="signed", mode="signed"),
    "sampled, events": Sampled(epsilon=1, max_entries=4, values="signed", mode="events"),
    "repeated, events": Repeated(epsilon=1, max_entries=4, values="signed", mode="events"),
    "sketch_response, events": SketchResponse(epsilon=1, max_entries=4, values="signed", mode="events"),
    "privkv, as published": PrivKV(epsilon=1, max_entries=4, size=40, as_published=True),
}


def tables() -> Iterator[str]:
    """Every fault with its figures, then the smallest share of every mechanism that is still caught."""
    yield "| fault | exact | sampled |\n|---|---|---|"
    for name, fault in FAULTS.items():
        yield f"| {name} | {figure(audited_exactly(fault))} | {figure(audited_by_sampling(fault))} |"
    yield "\n| mechanism | exact | sampled |\n|---|---|---|"
    for name, scaled in SCALED.items():
        exact = "none"
        for share in _EXACT:
            finding = audited_exactly(Fault(scaled(share)))
            if finding is None or not finding.refuted:
                exact = "impossible" if finding is None else exact
                break
            exact = f"{share:g}"
        sampled = "none"
        for share in _SAMPLED:
            if not audited_by_sampling(Fault(scaled(share))).refuted:
                break
            sampled = f"{share:g}"
        yield f"| {name} | {exact} | {sampled} |"


def power() -> Iterator[str]:
    """A loss that is larger by the excess that the audit of a sound mechanism states, in fresh runs: caught how often?

    Only mechanisms whose loss is the logarithm of their weights' ratio, so that what is planted is what is stated.
    """
    for name, sound in {
        "collision": lambda epsilon: Collision(epsilon=epsilon, max_entries=1),
        "collision, 4 entries": lambda epsilon: Collision(epsilon=epsilon, max_entries=4),
        "coco": lambda epsilon: CoCo(epsilon=epsilon, max_entries=1),
        "hadamard": lambda epsilon: HadamardResponse(epsilon=epsilon, bits=8),
        "sparse_sum, one bit": lambda epsilon: SparseSum(epsilon=epsilon, max_entries=1, noise="bit"),
    }.items():
        for epsilon in (0.01, 0.1, 1.0, 4.0):
            for samples in (200_000,) if epsilon < 1 else (13_000, 60_000):
                mechanism = sound(epsilon)
                excess = sampled_audit(task_for(mechanism, 40), samples, **sources(1)).smallest_excess
                if excess is None:
                    yield f"{name}, epsilon {epsilon:g}, {samples:,} samples: nothing stated"
                    continue
                faulty = louder(type(mechanism), math.exp(excess * epsilon))(**mechanism.model_dump())
                task = task_for(faulty, 40)
                tests = planned_tests(task, 3)
                verdicts = (
                    judge_task(
                        task, tests, samples // 3 if name != "hadamard" else samples, **sources(1000 * run)
                    )
                    for run in range(1, _POWER_RUNS + 1)
                )
                caught = sum(verdict.lower_bound(5e-7) > epsilon for verdict in verdicts)
                yield (
                    f"{name}, epsilon {epsilon:g}, {samples:,} samples: a loss of {1 + excess:.3f} epsilon was caught "
                    f"{caught} times of {_POWER_RUNS}"
                )


def alarms(part: int, parts: int) -> Iterator[str]:
    """How often sound mechanisms are refuted: repetitions `part`, `part` + `parts`, ... of every mechanism."""
    sound = {name: scaled(0.0) for name, scaled in SCALED.items()} | PLANNED
    tasks = {name: task_for(each, getattr(each, "size", 40)) for name, each in sound.items()}
    refuted, runs = dict.fromkeys(tasks, 0), range(part, _REPETITIONS, parts)
    for run in runs:
        for name, task in tasks.items():
            finding = sampled_audit(task, _FEW_SAMPLES, _LEVEL, seeds=1, **sources(1000 * (run + 1)))
            refuted[name] += finding.refuted
            if finding.refuted:
                yield f"run {run}, {name}: {finding.words()}"
        yield f"run {run}: {sum(refuted.values())} refuted so far"
    yield f"{sum(refuted.values())} of {len(runs) * len(tasks)} refuted at level {_LEVEL}"
    yield from (f"{name}: {count} of {len(runs)}" for name, count in refuted.items())


def sources(first: int) -> dict[str, Any]:
    """Repeatable coins and seeds, a fresh source for every call. (A `Client` takes none but its own.)"""
    secret, public = iter(range(first, first + 1000)), iter(range(first, first + 1000))
    return {"coins": lambda: InsecureCoins(next(secret)), "public": lambda: SimulatedSeeds(next(public))}


if __name__ == "__main__":
    jobs = {"tables": tables, "power": power, "alarms": alarms}
    for line in jobs[sys.argv[1]](*map(int, sys.argv[2:])):
        print(line, flush=True)
