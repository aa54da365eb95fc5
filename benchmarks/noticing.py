"""What noticing forged reports costs, how often it notices them, and how often it is wrong, for every mechanism.

python benchmarks/noticing.py cost
python benchmarks/noticing.py power [--runs 100] [--reports 1000000] [--only collision ...]
python benchmarks/noticing.py honest [--runs 250] [--reports 20000]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hubbub.checks.worlds import task_for
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.record import GRID, Entries
from hubbub.protocol.task import Task
from hubbub.server.evidence import Evidence
from hubbub.server.fold import aggregate
from hubbub.server.forgeries import notice
from hubbub.simulation.forgery import forge
from hubbub.simulation.populations import zipf_population
from hubbub.simulation.rehearsal import simulate

#: Runs after which the honest reports are made anew; who is a forger, and for what, is another one in each.
_AGAIN = 20
#: How many keys forgers lift; 0: there are none.
_TARGETS = (0, 1, 2, 3, 10)
#: Numbers in the reports of one run, at most: where reports are wide, there are fewer.
_MOST_NUMBERS = 1 << 23


@dataclass(frozen=True)
class Case:
    """One kind of collection."""

    name: str
    mechanism: str
    entries: int = 8
    keys: int = 4096
    more: dict[str, Any] = field(default_factory=dict)

    def task(self, reports: int) -> Task:
        """With epsilon 1."""
        sized = {"users": reports} if self.keys == 4096 and self.mechanism in _HASHED else {}
        listed = {"size": self.keys} if self.keys != 4096 else {}
        made = make_mechanism(
            self.mechanism, epsilon=1.0, max_entries=self.entries, **sized, **listed, **self.more
        )
        return task_for(made, self.keys)


_HASHED = ("sketch_response", "collision", "coco", "sparse_sum", "sampled", "repeated", "local_hashing")
_CASES = [
    Case("sketch_response", "sketch_response"),
    Case("sketch_response, 1 entry", "sketch_response", 1),
    Case("sketch_response, 2 buckets", "sketch_response", more={"buckets": 2}),
    Case("sketch_response, signed", "sketch_response", more={"values": "signed"}),
    Case("collision", "collision"),
    Case("collision, prf", "collision", more={"family": "prf"}),
    Case("coco", "coco"),
    Case("sparse_sum", "sparse_sum"),
    Case("sparse_sum, entry", "sparse_sum", more={"unit": "entry"}),
    Case("sparse_sum, l1", "sparse_sum", more={"unit": "l1", "distance": 2.0}),
    Case("sampled", "sampled"),
    Case("local_hashing", "local_hashing", 1),
    Case("repeated", "repeated"),
    Case("hadamard", "hadamard", 1),
    Case("compressive", "compressive", 1),
    Case("freq_est, 64 keys", "freq_est", 1, 64),
    Case("gaussian, 64 keys", "gaussian", 8, 64),
    Case("pckv_grr, 64 keys", "pckv_grr", 8, 64),
    Case("pckv_ue, 64 keys", "pckv_ue", 8, 64),
    Case("privkv, 64 keys", "privkv", 8, 64),
    Case("harmony, 64 keys", "harmony", 8, 64),
    Case("value_list, 16 keys", "value_list", 1, 16),
]


def _number(task: Task, reports: int) -> int:
    return min(reports, _MOST_NUMBERS // len(task.mechanism.layout.fields))


def cost(case: Case, reports: int) -> None:
    """Looking as a share of unpacking and absorbing, in seconds of a core (best of eight); and the tests."""
    task = case.task(reports)
    reports = _number(task, reports)
    mechanism, rng = task.mechanism, np.random.default_rng(1)
    fields = mechanism.layout.fields
    columns = [rng.integers(0, each.limit - 1, reports, dtype=np.uint64, endpoint=True) for each in fields]
    packed = mechanism.layout.pack(np.stack(columns, axis=1))
    best = np.full(4, np.inf)
    for _ in range(8):
        marks = [time.thread_time()]
        numbers = mechanism.layout.unpack(packed)
        state = mechanism.empty(task.keys)
        mechanism.absorb(state, task.keys, numbers)
        marks.append(time.thread_time())
        evidence = Evidence(task)
        evidence.add(numbers)
        marks.append(time.thread_time())
        notice(evidence, state)
        marks.append(time.thread_time())
        Evidence(task, 1 << 17).add_packed(packed, start=0)
        marks.append(time.thread_time())
        best = np.minimum(best, np.diff(marks))
    absorbing, looking, testing, again = (1000 * best).tolist()
    print(
        f"{case.name:28} {reports:>9,} reports: absorbing {absorbing:7.1f} ms, looking along {looking:5.1f} ms "
        f"({looking / absorbing:5.1%}), looking again as the service does {again:5.1f} ms ({again / absorbing:5.1%}); "
        f"the tests, once: {testing:5.1f} ms",
        flush=True,
    )


def power(case: Case, reports: int, runs: int) -> None:
    """How many of `runs` collections with 1% maximal forgers are noticed, by the number of targets."""
    task = case.task(reports)
    reports = _number(task, reports)
    forgers = reports // 100
    found: dict[int, list[bool]] = {targets: [] for targets in _TARGETS}
    why: set[str] = set()
    for run in range(runs):
        if run % _AGAIN == 0:
            signed = task.mechanism.values != "set"
            most = min(case.entries, 6)
            crowd = zipf_population(reports, case.keys, run, entries=most, signed=signed)
            honest = simulate(task, crowd.entries, 1000 + run)
        order = np.random.default_rng(run)
        for targets, noticed in found.items():
            packed = honest.packed
            if targets:
                chosen = order.choice(case.keys, targets, replace=False).tolist()
                forged = forge(task, forgers, "maximal", chosen, seed=run)
                packed = packed.copy()
                packed[order.choice(reports, forgers, replace=False)] = forged
            elif run % _AGAIN:
                continue
            evidence = Evidence(task)
            said = notice(evidence, aggregate(task, packed, evidence=evidence))
            noticed.append(said.noticed)
            why |= {each.test for each in said.suspicious} if targets else set()
    told = ", ".join(
        f"{f'{targets} targets' if targets else 'honest'} {sum(noticed)}/{len(noticed)}"
        for targets, noticed in found.items()
    )
    print(
        f"{case.name}, {reports:,} reports, 1% forgers: {told} ({', '.join(sorted(why)) or 'no test'})",
        flush=True,
    )


def honest_crowds(case: Case, reports: int, seed: int, signed: bool) -> dict[str, Entries]:
    """Popular keys, keys that are all alike, everybody the same full record, and nobody any."""
    most = min(case.entries, 6)
    same = np.arange(case.entries, dtype=np.uint64)
    values = np.where(np.arange(case.entries) % 2 == int(signed), GRID, -GRID if signed else GRID)
    return {
        "Zipf": zipf_population(reports, case.keys, seed, entries=most, signed=signed).entries,
        "uniform": zipf_population(
            reports, case.keys, seed, exponent=0.0, entries=most, signed=signed
        ).entries,
        "equal": Entries(
            np.tile(same, reports), np.tile(values, reports), case.entries * np.arange(reports + 1)
        ),
        "empty": Entries(
            np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(reports + 1, dtype=np.int64)
        ),
    }


def honest(case: Case, reports: int, runs: int) -> None:
    """False alarms in `runs` collections from each of four honest crowds."""
    task = case.task(reports)
    reports = _number(task, reports)
    alarms: dict[str, int] = {}
    for name, entries in honest_crowds(case, reports, 1, task.mechanism.values != "set").items():
        alarms[name] = 0
        for run in range(runs):
            packed = simulate(task, entries, 5000 + run).packed
            evidence = Evidence(task)
            alarms[name] += notice(evidence, aggregate(task, packed, evidence=evidence)).noticed
    told = ", ".join(f"{name} {count}/{runs}" for name, count in alarms.items())
    print(f"{case.name}, {reports:,} honest reports, suspected: {told}", flush=True)


def main() -> None:
    """Measure one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["cost", "power", "honest"])
    parser.add_argument("--reports", type=int)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--only", nargs="*", help="names of cases")
    asked = parser.parse_args()
    for case in _CASES:
        if asked.only and case.name not in asked.only:
            continue
        if asked.what == "cost":
            cost(case, asked.reports or 1_000_000)
        elif asked.what == "power":
            power(case, asked.reports or 1_000_000, asked.runs or 100)
        else:
            honest(case, asked.reports or 20_000, asked.runs or 250)


if __name__ == "__main__":
    main()
