"""What a guarantee is worth once a shuffler has mixed the reports. `hubbub.amplify` and `hubbub amplify`."""

from __future__ import annotations

from hubbub.model.guarantee import Guarantee
from hubbub.model.mechanism import Mechanism
from hubbub.privacy.compose import Method, compose
from hubbub.privacy.over_time import DELTA
from hubbub.privacy.shuffle import crowd_of, shuffled_guarantee
from hubbub.protocol.task import Task


def amplify(
    task: Task | Mechanism, reports: int, delta: float = DELTA, rounds: int = 1, method: Method = "loss"
) -> Guarantee:
    """The guarantee of the shuffled model for a crowd of `reports`, or for several equal `rounds` of it together.

        hubbub.amplify(task, reports=10_000).epsilon

    For a task: of all reports of one person in a period. `method` says how rounds are added up: "loss" is the tightest
    and needs the extra `accounting`; "advanced" and "basic" do not.
    """
    mechanism, most = (task, 1) if isinstance(task, Mechanism) else (task.mechanism, task.reports_per_period)
    if rounds == 1:
        return shuffled_guarantee(mechanism, reports, delta, most)
    return compose([crowd_of(mechanism, reports, most)] * rounds, delta, method)
