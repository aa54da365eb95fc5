"""What noticing forged reports costs, beside absorbing, and how often it notices them.

python benchmarks/noticing.py cost
python benchmarks/noticing.py power [--runs 100] [--reports 1000000]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from hubbub.checks.worlds import task_for
from hubbub.mechanisms.registry import make_mechanism
from hubbub.protocol.task import Task
from hubbub.server.evidence import Evidence
from hubbub.server.forgeries import notice
from hubbub.simulation.forgery import forge
from hubbub.simulation.populations import zipf_population
from hubbub.simulation.rehearsal import simulate

_KEYS = 4096
#: Runs after which the honest reports are made anew; who is a forger, and for what, is another one in each.
_AGAIN = 20
#: How many keys forgers lift; 0: there are none.
_TARGETS = (0, 1, 2, 3)


def _task(name: str, reports: int) -> Task:
    return task_for(make_mechanism(name, epsilon=1.0, max_entries=8, users=reports), _KEYS)


def cost(reports: int) -> None:
    """Counting along as a share of unpacking and absorbing, in seconds of a core (best of twelve); and the tests."""
    for name in ("sketch_response", "collision"):
        task = _task(name, reports)
        mechanism, rng = task.mechanism, np.random.default_rng(1)
        columns = [
            rng.integers(0, field.limit, reports, dtype=np.uint64) for field in mechanism.layout.fields
        ]
        packed = mechanism.layout.pack(np.stack(columns, axis=1))
        best = np.full(3, np.inf)
        for _ in range(12):
            marks = [time.thread_time()]
            numbers = mechanism.layout.unpack(packed)
            mechanism.absorb(mechanism.empty(task.keys), task.keys, numbers)
            marks.append(time.thread_time())
            evidence = Evidence(task)
            evidence.add(numbers)
            marks.append(time.thread_time())
            notice(evidence)
            marks.append(time.thread_time())
            best = np.minimum(best, np.diff(marks))
        absorbing, counting, testing = (1000 * best).tolist()
        print(
            f"{name}, {reports:,} reports: absorbing {absorbing:.1f} ms, counting along {counting:.1f} ms "
            f"({counting / absorbing:.1%}); the tests, once: {testing:.1f} ms"
        )


def power(reports: int, runs: int) -> None:
    """How many of `runs` collections with 1% maximal forgers are noticed, by the number of targets."""
    forgers = reports // 100
    for name in ("sketch_response", "collision"):
        task = _task(name, reports)
        found = dict.fromkeys(_TARGETS, 0)
        for run in range(runs):
            if run % _AGAIN == 0:
                crowd = zipf_population(reports, _KEYS, run, signed=False)
                honest = simulate(task, crowd.entries, 1000 + run)
            order = np.random.default_rng(run)
            for targets in found:
                packed = honest.packed
                if targets:
                    chosen = order.choice(_KEYS, targets, replace=False).tolist()
                    forged = forge(task, forgers, "maximal", chosen, seed=run)
                    packed = packed.copy()
                    packed[order.choice(reports, forgers, replace=False)] = forged
                evidence = Evidence(task)
                evidence.add(task.mechanism.layout.unpack(packed))
                found[targets] += notice(evidence).noticed
        for targets, noticed in found.items():
            who = f"{forgers:,} maximal forgers, {targets} targets" if targets else "honest"
            print(f"{name}, {reports:,} reports, {who}: noticed in {noticed} of {runs} runs", flush=True)


def main() -> None:
    """Measure one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["cost", "power"])
    parser.add_argument("--reports", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=100)
    asked = parser.parse_args()
    if asked.what == "cost":
        cost(asked.reports)
    else:
        power(asked.reports, asked.runs)


if __name__ == "__main__":
    main()
