"""Rehearsed forgeries: the bound that is told beside them holds, and what is not known is no finding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hubbub.calls.forged import Forged, rehearse_forgery
from hubbub.checks.conformance import task_for
from hubbub.cli._forged import draw
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.record import GRID, Entries
from hubbub.protocol.task import Task
from hubbub.server.forgers import influence_on, influence_words
from hubbub.simulation.populations import zipf_population

_WORDS = ["aaaa", "bbbb", "cccc", "dddd"]


def _tree(**more: Any) -> Task:
    tree = {"longest": 4, "levels": [2, 2], "shares": [1, 1, 1]}
    keys = {"kind": "tree", "salt": "5a" * 16, "tree": tree, **more}
    return Task.parse(
        {
            "name": "words",
            "keys": keys,
            "mechanism": {"name": "collision", "epsilon": 1.0, "max_entries": 4},
        }
    )


def _one_each(task: Task, names: list[str], users: int, held: int) -> Entries:
    """Everybody has one of the first `held` keys."""
    keys = np.random.default_rng(1).integers(0, held, users)
    ids = task.keys.ids_of(names)[keys]
    return Entries(ids, np.full(users, GRID, dtype=np.int64), np.arange(users + 1, dtype=np.int64))


def _holds(found: Forged) -> bool:
    assert found.most is not None
    known = np.isfinite(found.shift)
    return bool((np.abs(found.shift) <= found.most + 1e-9)[known].all())


def test_in_a_tree_few_are_heard_and_forgers_all_are() -> None:
    """The bound holds, and is by a third of the reports: that of all would be exceeded."""
    task = _tree()
    crowd = _one_each(task, _WORDS, 30_000, 3)
    for seed in (1, 2, 3):
        found = rehearse_forgery(task, crowd, 0.01, "maximal", ["dddd"], names=_WORDS, seed=seed)
        assert _holds(found)
        assert found.most is not None
        reached = float(found.shift[3])
        alone = task.mechanism.influence("frequency")
        assert reached > 2 * 0.01 * alone.replaced
        # Nobody has the key, so what it is lifted by is `up` for every forged report that is heard.
        lifted = influence_on(task, "frequency").moved(0.01)
        assert reached == pytest.approx(lifted, rel=0.1)
        assert lifted == pytest.approx(0.01 / (0.01 + 0.99 / 3) * alone.most)
    assert f"{3 * alone.most:.3g} / n" in influence_words(task)
    assert f"{lifted:.3g}" in influence_words(task)


def test_sums_are_of_all_reports() -> None:
    task = task_for(make_mechanism("collision", epsilon=1.0, max_entries=4), 50)
    crowd = zipf_population(5000, 50, 1, entries=2.0, signed=False).entries
    share, total = (
        rehearse_forgery(task, crowd, 0.02, "maximal", ["49"], quantity=quantity)  # type: ignore[arg-type]
        for quantity in ("frequency", "sum")
    )
    assert _holds(share)
    assert _holds(total)
    assert share.most is not None
    assert total.most == pytest.approx(5000 * share.most)


def test_refined_estimates_have_no_bound() -> None:
    """So those that the bound is told of are not refined, and that is said. A share of 3% is refined away or not."""
    task = task_for(make_mechanism("compressive", epsilon=1.0, rows=256), 500)
    rng = np.random.default_rng(0)
    for share in (0.03, 0.05):
        keys = rng.choice(500, 20_000, p=[0.5, share, *[(0.5 - share) / 498] * 498]).astype(np.uint64)
        crowd = Entries(keys, np.full(20_000, GRID), np.arange(20_001, dtype=np.int64))
        for seed in range(1, 5):
            found = rehearse_forgery(task, crowd, 0.003, "maximal", ["1"], seed=seed)
            assert _holds(found)
    assert "not refined here" in " ".join(found.closing())


def test_reports_about_one_key_each(tmp_path: Path) -> None:
    """A key that hardly any report is about is moved further, and its bound is larger; the picture has all of them."""
    task = task_for(make_mechanism("privkv", epsilon=1.0, size=1000, max_entries=4), 1000)
    crowd = zipf_population(5000, 1000, 1, entries=2.0).entries
    for seed in (1, 2):
        for target in ("999", "500"):
            found = rehearse_forgery(task, crowd, 0.0004, "maximal", [target], seed=seed)
            assert _holds(found)
            assert found.most is not None
            assert found.most.max() > 2 * found.most.min()
            assert "the one that most reports are about" in " ".join(found.closing())
    draw(tmp_path / "attack.png", found)
    assert (tmp_path / "attack.png").stat().st_size > 1000
    assert "that as many reports are about as about any other" in influence_words(task)


def test_what_is_not_known_is_no_finding() -> None:
    """Conditional means of keys that cannot be told from absent ones are null, and did not move furthest."""
    task = task_for(make_mechanism("collision", epsilon=1.0, max_entries=2, values="signed"), 20)
    rng = np.random.default_rng(2)
    keys = rng.choice(20, 20_000, p=[0.5, *[0.5 / 19] * 19]).astype(np.uint64)
    crowd = Entries(keys, np.full(20_000, GRID // 2), np.arange(20_001, dtype=np.int64))
    found = rehearse_forgery(task, crowd, 0.01, "maximal", ["7"], quantity="conditional")
    row = found.rows()[0]
    assert row["before"] is None
    assert row["shift"] is None
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert data["targets"] == [row]
    assert found.furthest is not None
    assert np.isfinite(found.before[found.furthest])
    assert data["furthest"]["key"] == found.keys[found.furthest]
    few = rehearse_forgery(task, crowd.slice(0, 10), 0.1, "random", quantity="conditional")
    assert few.furthest is None
    assert few.as_dict()["furthest"] is None
    assert "Nothing is known about any key." in few.closing()
