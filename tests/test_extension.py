"""Adding a mechanism is writing one class: everything else finds it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pytest
from pydantic import Field

from helpers import refuse, run_cli, succeed, write_csv
from hubbub.checks.conformance import (
    check_batch,
    check_merge,
    check_privacy,
    check_wire,
    examples,
    measure_accuracy,
    task_for,
)
from hubbub.mechanisms.registry import make_mechanism, mechanisms
from hubbub.mechanisms.shared.hashed import Hashed, Votes
from hubbub.model.guarantee import Guarantee
from hubbub.model.mechanism import Goal, Held, Moments, mechanism_code, registered
from hubbub.plan.ranking import rank
from hubbub.primitives.batch import per_record
from hubbub.primitives.samplers import randomized_response
from hubbub.primitives.wire import WireField
from hubbub.protocol.task import Task
from hubbub.simulation.populations import distinct_population


class Shape(NamedTuple):
    buckets: int
    favoured: int
    other: int


@per_record
def answer(tape: Any, i: int, records: Any, shape: Any, reports: Any) -> None:
    """The key's bucket with weight `favoured`, any other with weight `other`; any at all without a key."""
    first = records.offsets[i]
    truth = records.bucket[first] if records.offsets[i + 1] > first else -1
    reports[i, 0] = randomized_response(tape, truth, shape.buckets, shape.favoured, shape.other)


def define_toy(toy_name: str = "toy") -> Any:
    """Randomized response over hash buckets, for sets of one key."""

    class Toy(Hashed):
        """epsilon-LDP per record: every bucket has a weight between V and W, and the total is the same."""

        name: ClassVar[str] = toy_name
        summary: ClassVar[str] = "randomized response, for this test"

        max_entries: Literal[1] = Field(default=1, description="one key")
        values: Literal["set"] = Field(default="set", description="sets only")
        shade: int = Field(default=0, ge=0, le=9, description="a parameter of its own")

        def guarantee(self) -> Guarantee:
            return Guarantee(self.epsilon)

        @property
        def quantities(self) -> Any:
            return ("frequency",)

        @property
        def channels(self) -> int:
            return 1

        def best_buckets(self) -> int:
            return 4

        def report_fields(self) -> Any:
            return (WireField("bucket", self.buckets),)

        def kernel_and_shape(self) -> Any:
            return answer, Shape(self.buckets, *self.weights)

        def votes(self, reports: Any) -> Any:
            return (Votes(False, reports[:, 0], np.ones((len(reports), 1), dtype=np.int64)),)

        @property
        def gap(self) -> float:
            favoured, other = self.weights
            return favoured / (favoured + (self.buckets - 1) * other) - 1 / self.buckets

        def moments(self, state: Any, keys: Any, ids: Any) -> Moments:
            share = (self.tally(state, keys, ids)[0] / state.count - 1 / self.buckets) / self.gap
            return Moments(share, self.spread(state.count, np.clip(share, 0, 1)))

        def spread(self, users: int, share: Any) -> Any:
            seen = 1 / self.buckets + self.gap * share
            return (seen * (1 - 2 / self.buckets) + 1 / self.buckets**2 - self.gap**2 * share) / (
                users * self.gap**2
            )

        def variance_for(self, quantity: Any, users: int, held: Held) -> float:
            return float(self.spread(users, held.frequency))

        @classmethod
        def candidates(cls, goal: Goal) -> Iterator[Any]:
            if goal.unit == "record" and goal.quantity == "frequency" and goal.values == "set":
                yield cls(epsilon=goal.epsilon, family=goal.family)

    return Toy


@pytest.fixture
def toy() -> Iterator[Any]:
    yield define_toy()
    registered.pop("toy")


def test_the_registry_finds_it(toy: Any) -> None:
    assert mechanisms()["toy"] is toy
    assert make_mechanism("toy", epsilon=1.0).buckets == 4


def test_the_planner_ranks_it(toy: Any) -> None:
    """With its own predicted error where it is suitable, and with a reason where it is not."""
    ranked = rank(Goal("frequency", 1.0, 1, users=1000))
    option = next(option for option in ranked if option.name == "toy")
    assert option.mechanism is not None
    assert option.error == pytest.approx(option.mechanism.variance("frequency", 1000) ** 0.5)
    assert [o.error for o in ranked] == sorted(o.error for o in ranked)
    unsuitable = next(o for o in rank(Goal("mean", 1.0, 1, "signed")) if o.name == "toy")
    assert unsuitable.mechanism is None
    assert "sets" in unsuitable.reason


def test_the_command_line_lists_it_with_its_parameters(toy: Any) -> None:
    said = succeed("mechanisms")["mechanisms"]["toy"]
    assert said["summary"] == toy.summary
    assert said["parameters"]["shade"] == "a parameter of its own"
    assert "shade" in run_cli("mechanisms", "--verbose").stdout


def test_the_command_line_makes_tasks_of_it(toy: Any, tmp_path: Path) -> None:
    common = [
        "task",
        "new",
        "--name",
        "x",
        "--keys",
        9,
        "--epsilon",
        1,
        "--max-entries",
        1,
        "--mechanism",
        "toy",
    ]
    path = tmp_path / "t.toml"
    said = succeed(*common, "--set", "shade=7", "--set", "buckets=8", "-o", path)
    assert said["task"]["mechanism"] | {"shade": 7, "buckets": 8} == said["task"]["mechanism"]
    assert succeed("task", "show", path)["digest"] == said["digest"]
    assert "shade" in refuse(*common, "--set", "shade=10", "-o", path)
    assert "hue" in refuse(*common, "--set", "hue=1", "-o", path)
    assert "power of two" in refuse(*common, "--set", "buckets=6", "-o", path)


def test_the_command_line_runs_it(toy: Any, tmp_path: Path) -> None:
    """At epsilon 8 the error is a percent: shares of 3/4 and 1/4 come out in order."""
    table = write_csv(tmp_path / "t.csv", [("u", "k"), *((i, "ab"[i % 4 == 0]) for i in range(400))])
    options = ["--user", "u", "--key", "k", "--epsilon", 8, "--max-entries", 1, "--mechanism", "toy"]
    said = succeed("run", table, *options, "--set", "buckets=1024")
    assert said["task"]["mechanism"]["name"] == "toy"
    assert [row["key"] for row in said["estimates"]] == ["a", "b"]
    assert said["reports"] == 400


def test_conformance_finds_it_and_it_conforms(toy: Any) -> None:
    found = [m for m in examples() if m.name == "toy"]
    assert {m.family for m in found} == {"walsh", "prf"}
    for mechanism in found:
        check_privacy(mechanism)
        check_wire(mechanism)
        check_merge(mechanism)
    check_batch(found[0])


def test_conformance_measures_its_error(toy: Any) -> None:
    """False alarms about 1e-6; formulas 30% off are rejected."""
    mechanism = toy(epsilon=1.0)
    crowd = distinct_population(4096, 24, 1, seed=1, exponent=0.7)
    found = measure_accuracy(task_for(mechanism, 24), crowd.entries, 24, "frequency", runs=90)
    found.check()
    for wrong in (0.7, 1.3):
        with pytest.raises(AssertionError, match="variance is off"):
            found.check(formula=wrong)


def test_conformance_notices_a_broken_mechanism(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the weights of epsilon 1.3 and a claim of 1, the enumeration objects."""
    mechanism = toy(epsilon=1.0)
    stronger = toy(epsilon=1.3).weights
    monkeypatch.setattr(toy, "weights", stronger)
    with pytest.raises(AssertionError, match="loses"):
        check_privacy(mechanism)


def test_a_parameter_that_is_added_later_leaves_old_tasks_alone(toy: Any) -> None:
    """Files carry digests of their tasks: a new parameter, left at its default, must not make them unreadable."""
    old = task_for(toy(epsilon=1.0))

    class Later(toy):  # type: ignore[misc,valid-type]
        """The same in a later version."""

        name: ClassVar[str] = "toy"
        hue: int = Field(default=3, description="added later")

    new = Task.parse(json.loads(old.canonical))
    assert new.mechanism == Later(epsilon=1.0)
    assert new.digest == old.digest
    loud = task_for(Later(epsilon=1.0, hue=4))
    assert loud.digest != old.digest


def test_two_mechanisms_with_one_wire_code_are_refused() -> None:
    wanted = mechanism_code("collision")
    twin = next(name for name in (f"x{i}" for i in range(10_000_000)) if mechanism_code(name) == wanted)
    before = mechanisms()
    with pytest.raises(TypeError, match="wire code of collision"):
        define_toy(twin)
    assert mechanisms() == before


def test_nothing_is_left_behind() -> None:
    assert "toy" not in mechanisms()
    assert "no mechanism called" in refuse(
        "task",
        "new",
        "--name",
        "x",
        "--keys",
        9,
        "--epsilon",
        1,
        "--max-entries",
        1,
        "--mechanism",
        "toy",
        "-o",
        "t",
    )
