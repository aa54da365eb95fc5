"""hubbub audit: what it says about sound tasks, and that a broken one does not pass."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from helpers import refuse, run_cli, strict_json, succeed
from hubbub.checks import audit
from hubbub.checks.conformance import task_for
from hubbub.mechanisms.collision import Collision
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.mechanism import Mechanism, registered
from hubbub.primitives.coins import InsecureCoins, SimulatedSeeds

SAMPLES = 20_000


@pytest.fixture(autouse=True)
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampled audits flip repeatable coins; a sound task is refuted with probability 1e-6 (the default confidence)."""
    secret, public = iter(range(1000)), iter(range(1000))
    seeded = partial(
        audit.sampled_audit,
        coins=lambda: InsecureCoins(next(secret)),
        public=lambda: SimulatedSeeds(next(public)),
    )
    monkeypatch.setattr(audit, "sampled_audit", seeded)


@pytest.fixture
def loud() -> Iterator[type[Mechanism]]:
    """Collision with twice the weight on what is held, under the old claim."""

    class Loud(Collision):
        """Loses ln 2 more than it says."""

        name: ClassVar[str] = "loud"
        summary: ClassVar[str] = "broken, for this test"

        @property
        def weights(self) -> tuple[int, int]:
            favoured, other = super().weights
            return 2 * favoured, other

    yield Loud
    registered.pop("loud")


def save(mechanism: Mechanism, folder: Path, size: int = 40) -> Path:
    """A task file for a mechanism."""
    path = folder / "t.toml"
    task_for(mechanism, size).save(path)
    return path


REAL: list[tuple[str, dict[str, Any]]] = [
    ("collision", {"max_entries": 4}),
    ("coco", {"max_entries": 2}),
    ("sketch_response", {"max_entries": 4}),
    ("hadamard", {"bits": 8}),
    ("sparse_sum", {"max_entries": 4, "unit": "entry"}),
]


@pytest.mark.parametrize(("name", "parameters"), REAL, ids=str)
def test_sound_tasks(name: str, parameters: dict[str, Any], tmp_path: Path) -> None:
    task = save(make_mechanism(name, epsilon=1.0, **parameters), tmp_path)
    said = succeed("audit", task, "--samples", SAMPLES)
    assert said["refuted"] is False
    exact, sampled = said["findings"]
    assert (exact["kind"], sampled["kind"]) == ("exact", "sampled")
    for finding in (exact, sampled):
        assert finding["claimed"] == 1.0
        assert finding["delta"] == parameters.get("delta", 0.0)
        assert 0 < finding["found"] <= 1.0 + 1e-9
        assert finding["refuted"] is False
        assert finding["pairs"] > 0
        assert finding["objections"] == []
        assert finding["words"].startswith("Nothing contradicts the claim.")
        assert finding["worst_pair"] in finding["words"]
    assert (exact["samples"], exact["confidence"]) == (0, 1.0)
    assert exact["entries"] == min(2, parameters.get("max_entries", 1))
    shares = 1 if name == "hadamard" else 3
    assert sampled["samples"] == 2 * (SAMPLES // shares) * sampled["pairs"]
    assert sampled["confidence"] == 0.999999
    # Nothing is said of the power of an event that shows less than 0.8 of the claim.
    assert sampled["smallest_excess"] is None or sampled["found"] >= 0.8
    assert (sampled["smallest_excess"] is None) == ("not known" in sampled["words"])
    assert sampled["smallest_excess"] is None or 0.01 < sampled["smallest_excess"] < 0.5
    assert said["scope"].startswith("Excluded: a loss above epsilon = 1 in ")
    assert all(part in said["scope"] for part in said["excluded"] + said["not_excluded"])


def test_a_delta_of_hash_functions_promises_nothing_for_a_given_seed(tmp_path: Path) -> None:
    """100 keys whose signs agree under a seed that is given lose more; under fresh ones they do not."""
    law = {"max_entries": 100, "unit": "l1", "distance": 100, "delta": 1e-3, "family": "prf", "buckets": 1}
    task = save(make_mechanism("sparse_sum", epsilon=1.0, **law), tmp_path)
    said = succeed("audit", task, "--samples", 13_000)
    assert said["refuted"] is False
    assert [finding["kind"] for finding in said["findings"]] == ["sampled"]
    assert "bad hash functions" in said["scope"].split("Not excluded")[1]


def test_words_for_people(tmp_path: Path) -> None:
    task = save(Collision(epsilon=1.0, max_entries=1), tmp_path)
    result = run_cli("audit", task, "--samples", SAMPLES)
    assert (result.exit_code, result.stderr) == (0, "")
    exact, sampled, scope = (" ".join(part.split()) for part in result.stdout.split("\n\n"))
    assert exact.startswith("Exact: Nothing contradicts the claim. Claimed: epsilon = 1.")
    assert sampled.startswith("Sampled: Nothing contradicts the claim.")
    assert "would have been found with probability 0.95" in sampled
    assert "Sampling can refute a claim, not prove it." in sampled
    assert scope.startswith("Excluded: a loss above epsilon = 1 in ")
    assert ". Not excluded: faults that need more than 1 entry or other records; " in scope
    assert "\n" not in scope
    alone = run_cli("audit", task, "--samples", SAMPLES, "--no-exact", "--confidence", 0.99)
    assert "Exact" not in alone.stdout
    assert "with confidence 0.99 " in alone.stdout
    [finding] = succeed("audit", task, "--samples", SAMPLES, "--no-exact")["findings"]
    assert finding["kind"] == "sampled"


def test_a_broken_task_is_refuted(loud: type[Mechanism], tmp_path: Path) -> None:
    task = save(loud(epsilon=1.0, max_entries=1), tmp_path)
    result = run_cli("audit", task, "--samples", SAMPLES)
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    exact, sampled, scope = result.stdout.strip().split("\n\n")
    assert exact.startswith("Exact: The claim is REFUTED: ")
    assert sampled.startswith("Sampled: The claim is REFUTED.")
    assert f"epsilon = {1 + math.log(2):.5f}"[:-1] in exact
    assert scope.startswith("Excluded: nothing. Not excluded: ")
    assert result.stderr == "hubbub: The task's privacy claim does not hold.\n"


def test_each_way_refutes_by_itself(loud: type[Mechanism], tmp_path: Path, monkeypatch: Any) -> None:
    task = save(loud(epsilon=1.0, max_entries=4), tmp_path)
    sampled = run_cli("audit", task, "--no-exact", "--samples", SAMPLES)
    assert (sampled.exit_code, sampled.stdout.count("REFUTED")) == (1, 1)
    harmless = audit.Finding("sampled", 1.0, 0.0, 0.0, 0.9, 0, 1, "no pair")
    monkeypatch.setattr(audit, "sampled_audit", lambda *_, **__: harmless)
    exact = run_cli("audit", task, "--samples", SAMPLES)
    assert (exact.exit_code, exact.stdout.count("REFUTED")) == (1, 1)


def test_a_refutation_is_one_json_object(loud: type[Mechanism], tmp_path: Path) -> None:
    task = save(loud(epsilon=1.0, max_entries=1), tmp_path)
    result = run_cli("audit", task, "--samples", SAMPLES, "--json")
    assert result.exit_code == 1
    said = strict_json(result.stdout)
    assert said["refuted"] is True
    assert [finding["refuted"] for finding in said["findings"]] == [True, True]
    assert said["findings"][0]["found"] == pytest.approx(1 + math.log(2), abs=1e-6)
    assert 1 < said["findings"][1]["found"] < 1 + math.log(2)


def test_noise_that_cannot_be_enumerated(tmp_path: Path) -> None:
    """Gaussian noise: sampled only, and the scope says why."""
    task = save(make_mechanism("gaussian", epsilon=1.0, max_entries=1, size=3), tmp_path, size=3)
    said = succeed("audit", task, "--samples", SAMPLES)
    assert [finding["kind"] for finding in said["findings"]] == ["sampled"]
    assert "too many outcomes to be enumerated" in said["not_excluded"][0]


def test_samples_are_chosen(tmp_path: Path) -> None:
    """As many as take seconds: fewer of wide reports than of small ones."""
    drawn = {}
    for name in ("freq_est", "pckv_ue"):
        size = 3 if name == "freq_est" else 200
        mechanism = make_mechanism(name, epsilon=1.0, max_entries=1, size=size)
        [finding] = succeed("audit", save(mechanism, tmp_path, size), "--no-exact")["findings"]
        drawn[name] = finding["samples"] // finding["pairs"] // 2
    assert drawn["freq_est"] == 200_000
    assert 4096 <= drawn["pckv_ue"] < 100_000


def test_removed_mechanisms_are_unknown(tmp_path: Path) -> None:
    path = save(Collision(epsilon=1.0, max_entries=1), tmp_path)
    path.write_text(path.read_text().replace('"collision"', '"loud"'))
    assert "no mechanism called 'loud'" in refuse("audit", path)


@pytest.mark.parametrize("name", ["record", "entry"])
def test_a_vocabulary_of_one_key(name: str, tmp_path: Path) -> None:
    """Whatever the key's sign under the seeds of the audit."""
    mechanism = make_mechanism("sparse_sum", epsilon=1.0, max_entries=1, unit=name)
    assert succeed("audit", save(mechanism, tmp_path, size=1), "--samples", 2000)["refuted"] is False


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--samples", 10], "1000 samples"),
        (["--samples", 0], "1000 samples"),
        (["--samples", -1], "1000 samples"),
        (["--confidence", 0], "confidence"),
        (["--confidence", 1], "confidence"),
        (["--confidence", "nan"], "confidence"),
    ],
    ids=str,
)
def test_bad_input(options: list[Any], part: str, tmp_path: Path) -> None:
    task = save(Collision(epsilon=1.0, max_entries=1), tmp_path)
    assert part in refuse("audit", task, *options)
    assert "missing.toml" in refuse("audit", tmp_path / "missing.toml", *options)
