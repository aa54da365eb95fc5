"""Figures 1 and 2 of Xiong et al. on small crowds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hubbub.experiments import xiong
from hubbub.experiments.runner import Request

SYSTEMS = set(xiong.STYLES)


@pytest.mark.parametrize("name", xiong.LAWS)
def test_laws_are_as_sparse_as_the_paper_says(name: str) -> None:
    """All but a tenth of the mass lies on as many keys as the algorithms are told, on random places."""
    truth = xiong.law(name, 1000, 1)
    sparsity = xiong.LAWS[name][1]
    assert truth.sum() == pytest.approx(1)
    largest = np.sort(truth)[::-1]
    assert largest[:sparsity].sum() >= 0.9
    assert largest[: sparsity - 1].sum() < 0.9 or np.count_nonzero(truth) == sparsity
    assert not np.array_equal(truth, xiong.law(name, 1000, 2))


def test_geometric_law() -> None:
    """p(i) is proportional to (1 - lambda)^i lambda."""
    largest = np.sort(xiong.law("Geo(0.6)", 1000, 1))[::-1]
    assert largest[:3] == pytest.approx([0.6, 0.24, 0.096], rel=1e-9)


def test_rows_are_dealt_in_turn() -> None:
    """The paper's groups i mod m, over batches of any size."""
    dealt = xiong.DealtRows(3)
    assert [*dealt.draw(2, 4), *dealt.draw(2, 3)] == [0, 1, 2, 0, 1, 2, 0]


def test_one_measurement() -> None:
    """All systems at all points, the same numbers again for the same repetition, and the expected order of errors."""
    rows = xiong.measure(1000, "Geo(0.6)", [20_000, 100_000], 0)
    assert {(row["users"], row["system"]) for row in rows} == {
        (users, system) for users in (20_000, 100_000) for system in SYSTEMS
    }
    assert rows == xiong.measure(1000, "Geo(0.6)", [20_000, 100_000], 0)
    error = {(row["users"], row["system"]): row["l1"] for row in rows}
    # Three keys are given and hold 0.936: what is left out, and as much again where it is put instead.
    assert error[100_000, "one-bit CP"] == pytest.approx(0.128, abs=0.05)
    assert error[100_000, "CP, noise level"] < min(0.09, error[100_000, "one-bit CP"])
    assert error[100_000, "HR, sparse projection"] < error[100_000, "HR"] * 1.2


def test_page_and_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figure as `hubbub reproduce` makes it, of rows that are made up."""
    figures = {entry.name: entry for entry in xiong.experiments()}
    assert set(figures) == {"xiong-fig1", "xiong-fig2"}
    assert len(figures["xiong-fig1"].jobs(Request(quick=False))) == 40
    assert {job.arguments["keys"] for job in figures["xiong-fig2"].jobs(Request())} == {1_000_000}

    def made_up(keys: int, population: str, users: list[int], repetition: int) -> list[dict[str, object]]:
        about = {"population": population, "keys": keys}
        return [
            {**about, "users": count, "system": system, "l1": 1e3 / count + repetition / 100}
            for count in users
            for system in SYSTEMS
        ]

    monkeypatch.setattr(xiong, "measure", made_up)
    figures["xiong-fig1"].run(tmp_path, Request())
    page = (tmp_path / "xiong-fig1.md").read_text()
    assert "l1 error at 1,000,000 users" in page
    assert "| CP, noise level | 0.006 | 0.006 | 0.006 | 0.006 |" in page
    assert (tmp_path / "xiong-fig1.png").read_bytes().startswith(b"\x89PNG")
