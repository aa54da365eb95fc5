"""The paper's experiments as functions: their shape, their landmarks, and a file with a picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from hubbub.experiments import aumuller_figures as figures


def test_figure_3_has_the_bound_above_the_errors_and_its_dip() -> None:
    """Section 9: the bound is about twice the error, and both dip around alpha = 3."""
    rows = figures.figure3(alphas=(1.0, 3.0, 9.0), collisions=(0.1,), trials=3000)
    found = {(row["curve"], row["alpha"]): row["error"] for row in rows}
    for curve in ("argmax", "median", "mean", "bound"):
        assert found[curve, 3.0] < min(found[curve, 1.0], found[curve, 9.0])
        for alpha in (1.0, 3.0, 9.0):
            assert found[curve, alpha] <= found["bound", alpha]
    assert 1.7 < found["bound", 3.0] / found["argmax", 3.0] < 3.5
    assert figures.error_bound(3, 0.1) == pytest.approx(
        (0.5 + 16 / 9 + (4 * 24 / 13 + 4) / (24 / 13) ** 2) * 3
    )


def test_figure_4_lists_every_estimator() -> None:
    rows = figures.figure4(collisions=(0.1,), trials=2000)
    assert [row["curve"] for row in rows] == ["argmax", "median", "mean"]
    assert rows[0]["bias"] > 1 > abs(rows[1]["bias"])
    assert all(row["lowest"] < 0 < row["highest"] for row in rows)


def test_figure_5_crosses_where_the_paper_says() -> None:
    """Algorithm 10 beats Algorithm 4 from epsilon of about 0.7 on; c units per bit is never far above either."""
    rows = figures.figure5(epsilons=(0.4, 1.0, 3.0), trials=3000)
    found = {(row["curve"], row["epsilon"]): row["error"] for row in rows}
    assert found["Algorithm 4, s = infinity", 0.4] < found["Algorithm 10, s = infinity", 0.4]
    assert found["Algorithm 4, s = infinity", 1.0] > found["Algorithm 10, s = infinity", 1.0]
    assert found["Algorithm 10, e^-epsilon", 3.0] < found["Algorithm 10, 1/epsilon", 3.0]
    for epsilon in (0.4, 1.0, 3.0):
        ours = found["c units per bit, s = infinity", epsilon]
        for other in ("Algorithm 4", "Algorithm 10"):
            assert ours < 1.05 * found[f"{other}, s = infinity", epsilon]


def test_table_2_orders_the_algorithms() -> None:
    rows = {(row["algorithm"], row["delta"]): row for row in figures.table2(universe=1 << 14, entries=300)}
    assert len(rows) == 6
    dense, listed = rows["laplace", 0.0], rows["threshold", 0.0]
    assert dense["mean_error"] < min(row["mean_error"] for key, row in rows.items() if key[0] != "laplace")
    assert listed["bytes"] < dense["bytes"]
    assert rows["threshold", 1e-8]["largest_error"] < 40
    assert all(row["cells_read"] == 1 for key, row in rows.items() if "alp" not in key[0])


def test_integer_gaps_improve_on_the_histogram_variant() -> None:
    rows = figures.integer_gaps(epsilons=(0.5,), trials=4000)
    assert [row["beta"] for row in rows] == [200, figures.BETA]
    assert all(row["gap"] > 1 and row["c_units_per_bit"] < 0.8 * row["algorithm_10"] for row in rows)


def test_rows_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = figures.figure3(alphas=(2.0, 3.0), collisions=(0.1,), trials=200)
    figures.draw_alphas(rows, tmp_path / "f.png")
    figures.draw_epsilons(figures.figure5(epsilons=(1, 2), trials=100), tmp_path / "g.png")
    for name in ("f.png", "g.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
