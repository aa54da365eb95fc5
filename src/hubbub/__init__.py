"""hubbub learns from many people's sparse vectors without anybody's vector being readable.

    task = hubbub.Task.load("task.toml")           what is collected, and how it is hidden
    hubbub.Client(task).report({"page:17": 1.0})   a record becomes a few private bytes
    state = hubbub.aggregate(task, reports)        reports are added up
    hubbub.estimate(task, state)                   and the sum is read: values with error bars

    hubbub.run(frame, user="user", key="page", epsilon=1.0, max_entries=4)    all of it, from a table, in one call

`plan` says beforehand what can be learned, `simulate` what would have been, `audit` checks a task's privacy claim, and
`amplify` says what shuffling adds to it. `publish` is for whoever holds the counts themselves.

Everything that is public is named here; what is behind it is in the packages, each of which rests on the ones before
it: see docs/architecture.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hubbub.calls.amplify import amplify, amplify_by
    from hubbub.calls.outcome import Outcome, simulate
    from hubbub.calls.rehearse import Rehearsal, rehearse
    from hubbub.calls.run import Reports, privatize, run, run_by
    from hubbub.checks.audit import Audit, audit
    from hubbub.device.budget import Budget
    from hubbub.device.client import Client
    from hubbub.device.ledger import Ledger
    from hubbub.mechanisms.registry import make_mechanism
    from hubbub.model.guarantee import Guarantee
    from hubbub.model.keys import Keys
    from hubbub.model.state import State
    from hubbub.plan.overview import Plan, plan
    from hubbub.primitives.errors import Refused
    from hubbub.protocol.task import Task
    from hubbub.release.artifact import Release
    from hubbub.release.publisher import publish
    from hubbub.server.breakdown import Breakdown, compare_groups, estimate_by
    from hubbub.server.comparison import Comparison, compare
    from hubbub.server.discovery import Discovery, discover
    from hubbub.server.estimates import Estimate, estimate
    from hubbub.server.fold import aggregate

__version__ = "0.1.0"

__all__ = [
    "Audit",
    "Breakdown",
    "Budget",
    "Client",
    "Comparison",
    "Discovery",
    "Estimate",
    "Guarantee",
    "Keys",
    "Ledger",
    "Outcome",
    "Plan",
    "Refused",
    "Rehearsal",
    "Release",
    "Reports",
    "State",
    "Task",
    "__version__",
    "aggregate",
    "amplify",
    "amplify_by",
    "audit",
    "compare",
    "compare_groups",
    "discover",
    "estimate",
    "estimate_by",
    "make_mechanism",
    "plan",
    "privatize",
    "publish",
    "rehearse",
    "run",
    "run_by",
    "simulate",
]

#: Where the public names live. They are loaded on first use, so that importing hubbub stays light.
_HOMES = {
    "Audit": "checks.audit",
    "Breakdown": "server.breakdown",
    "Budget": "device.budget",
    "Client": "device.client",
    "Comparison": "server.comparison",
    "Discovery": "server.discovery",
    "Estimate": "server.estimates",
    "Guarantee": "model.guarantee",
    "Keys": "model.keys",
    "Ledger": "device.ledger",
    "Outcome": "calls.outcome",
    "Plan": "plan.overview",
    "Refused": "primitives.errors",
    "Rehearsal": "calls.rehearse",
    "Release": "release.artifact",
    "Reports": "calls.run",
    "State": "model.state",
    "Task": "protocol.task",
    "aggregate": "server.fold",
    "amplify": "calls.amplify",
    "amplify_by": "calls.amplify",
    "audit": "checks.audit",
    "compare": "server.comparison",
    "compare_groups": "server.breakdown",
    "discover": "server.discovery",
    "estimate": "server.estimates",
    "estimate_by": "server.breakdown",
    "make_mechanism": "mechanisms.registry",
    "privatize": "calls.run",
    "publish": "release.publisher",
    "rehearse": "calls.rehearse",
    "run": "calls.run",
    "run_by": "calls.run",
    "simulate": "calls.outcome",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"hubbub.{_HOMES[name]}"), name)
    if name == "plan":  # the package of that name, which can be called
        return importlib.import_module("hubbub.plan")
    raise AttributeError(f"module 'hubbub' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
