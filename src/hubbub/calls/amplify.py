"""What a guarantee is worth once a shuffler has mixed the reports. `hubbub.amplify` and `hubbub amplify`."""

from __future__ import annotations

from collections.abc import Mapping

from hubbub.model.guarantee import Guarantee
from hubbub.model.mechanism import Mechanism
from hubbub.primitives.errors import Refused
from hubbub.primitives.samplers import exact_messages
from hubbub.privacy.compose import Method, compose
from hubbub.privacy.messages import PoissonCrowd, messages_guarantee, poisson_crowd
from hubbub.privacy.over_time import DELTA, all_reports
from hubbub.privacy.shuffle import Crowd, crowd_of, shuffled_guarantee
from hubbub.protocol.sealing import check_sealable
from hubbub.protocol.task import Task

#: Rounds that can be added up: each is one in a list.
_MOST_ROUNDS = 1_000_000


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
    if isinstance(task, Task):
        check_sealable(task)
    mechanism, most = (task, 1) if isinstance(task, Mechanism) else (task.mechanism, task.reports_per_period)
    if rounds == 1:
        return shuffled_guarantee(mechanism, reports, delta, most)
    return _equal_rounds(crowd_of(mechanism, reports, most), rounds, delta, method)


def amplify_by(task: Task, reports: Mapping[str, int], delta: float = DELTA) -> dict[str, Guarantee]:
    """The same for a task whose labels or periods tell crowds apart: of each, by what it is called, with its reports.

        hubbub.amplify_by(task, {"de": 50_000, "fr": 2_000})["fr"].epsilon

    Labels travel beside reports, so a shuffler mixes those of one stratum among themselves, and whoever gets them sees
    which is which. If one person's record is replaced by another with the same labels, the reports of one stratum
    change and those of all others do not, and noise and order of the others are drawn independently. So all that is
    seen together tells no more about the person than that one stratum, whose crowd it is that counts. What is said of
    everybody is therefore the guarantee of the smallest. Where nobody else is in a crowd, it is the local one.
    """
    alone = all_reports(task.guarantee, task.reports_per_period)
    found = {}
    for name, count in reports.items():
        hidden = count > max(1, task.reports_per_period)
        promise = amplify(task, count, delta) if hidden else alone
        if promise is None:
            raise Refused(f"Nothing is promised to who is alone in a crowd ({name}): deltas add up to 1.")
        found[name] = promise
    return found


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
    return _equal_rounds(poisson_crowd(mechanism, people, mean), rounds, delta, method)


def _equal_rounds(crowd: Crowd | PoissonCrowd, rounds: int, delta: float, method: Method) -> Guarantee:
    if not 1 <= rounds <= _MOST_ROUNDS:
        raise Refused(f"There are between 1 and {_MOST_ROUNDS:,} rounds, not {rounds:,}.")
    return compose([crowd] * rounds, delta, method)
