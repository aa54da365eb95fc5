"""The audits against planted faults, and against sound mechanisms: the tables of docs/audit.md, and false alarms.

    python benchmarks/audits.py tables              both tables, as they stand in docs/audit.md
    python benchmarks/audits.py alarms [MECHANISM]  200 sampled audits of every sound mechanism, at level 0.99

The catalogue is tests/checks/faults.py. An audit at level 0.99 may refute a sound mechanism once in 100 times, that is
twice in 200; what is counted here shows how far below that it stays.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "checks"))

from faults import FAULTS, SCALED, Fault, audited_by_sampling, audited_exactly, figure

from hubbub.checks.audit import sampled_audit
from hubbub.checks.conformance import task_for
from hubbub.primitives.coins import InsecureCoins, SimulatedSeeds

#: Shares by which weights are too large, from obvious to hardly anything.
_EXACT = (0.3, 0.1, 0.07, 0.03, 0.01, 1e-3, 1e-5, 1e-7)
_SAMPLED = (1.0, 0.5, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03)
_REPETITIONS, _LEVEL, _FEW_SAMPLES = 200, 0.99, 13_000


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


def alarms(which: str) -> Iterator[str]:
    """How often sound mechanisms are refuted: every mechanism in turn, so that an early end is a fair sample."""
    sound = {name: scaled(0.0) for name, scaled in SCALED.items() if which in name}
    tasks = {name: task_for(each, getattr(each, "size", 40)) for name, each in sound.items()}
    refuted = dict.fromkeys(tasks, 0)
    for run in range(1, _REPETITIONS + 1):
        for name, task in tasks.items():
            secret, public = (iter(range(1000 * run, 1000 * run + 1000)) for _ in range(2))
            refuted[name] += sampled_audit(
                task,
                _FEW_SAMPLES,
                _LEVEL,
                coins=lambda coins=secret: InsecureCoins(next(coins)),  # type: ignore[misc]
                public=lambda seeds=public: SimulatedSeeds(next(seeds)),  # type: ignore[misc]
            ).refuted
        if run % 10 == 0:
            yield f"{sum(refuted.values())} of {run * len(tasks)} refuted at level {_LEVEL}"
    yield from (f"{name}: {count} of {_REPETITIONS}" for name, count in refuted.items())


if __name__ == "__main__":
    for line in tables() if sys.argv[1:] == ["tables"] else alarms(" ".join(sys.argv[2:])):
        print(line, flush=True)
