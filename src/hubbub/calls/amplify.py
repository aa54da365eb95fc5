"""What a guarantee is worth once a shuffler has mixed the reports. `hubbub.amplify` and `hubbub amplify`."""

from __future__ import annotations

from hubbub.model.guarantee import Guarantee
from hubbub.model.mechanism import Mechanism
from hubbub.primitives.errors import Refused
from hubbub.primitives.samplers import exact_messages
from hubbub.privacy.compose import Method, compose
from hubbub.privacy.messages import messages_guarantee, poisson_crowd
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
    if isinstance(task, Task) and task.messages:
        raise Refused(
            "This task asks for several messages: what counts is how many people there are (--people)."
        )
    mechanism, most = (task, 1) if isinstance(task, Mechanism) else (task.mechanism, task.reports_per_period)
    if rounds == 1:
        return shuffled_guarantee(mechanism, reports, delta, most)
    return compose([crowd_of(mechanism, reports, most)] * rounds, delta, method)


def amplify_messages(
    mechanism: Mechanism,
    people: int,
    messages: float,
    delta: float = DELTA,
    rounds: int = 1,
    method: Method = "loss",
) -> Guarantee:
    """The same if each of `people` sends a random number of reports, Poisson with mean `messages`, each made afresh."""
    mean = exact_messages(messages)
    if rounds == 1:
        return messages_guarantee(mechanism, people, mean, delta)
    return compose([poisson_crowd(mechanism, people, mean)] * rounds, delta, method)
