"""Section 9 of the paper: Figures 3, 4 and 5 and Table 2 as tables of rows, with our curves beside the paper's.

Simulations are seeded and not private. Functions return plain rows; `draw_...` draws them.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hubbub.primitives.arrays import Floats
from hubbub.primitives.envelope import write_atomic
from hubbub.primitives.errors import optional
from hubbub.release.goal import Algorithm, Goal
from hubbub.release.part import Estimator
from hubbub.release.publisher import simulate
from hubbub.release.trials import ones_after, simulate_heights

Row = dict[str, Any]

#: The paper's bound on values in all experiments.
BETA = 5000.0
_ESTIMATORS: tuple[Estimator, ...] = ("argmax", "median", "mean")


def error_bound(alpha: float, collision: float) -> float:
    """Lemmas 4.4 and 4.7: (1/2 + (4 alpha + 4) / alpha^2 + (4 gamma + 4) / gamma^2) alpha."""
    gamma = (alpha + 2) / (1 + alpha * collision) - 2
    return (0.5 + (4 * alpha + 4) / alpha**2 + (4 * gamma + 4) / gamma**2) * alpha


def alp_errors(
    alpha: float,
    collision: float,
    trials: int,
    seed: int = 1,
    epsilon: float = 1.0,
    estimator: Estimator = "argmax",
    multiples: bool = False,
) -> Floats:
    """Errors of Algorithms 4 and 5 for values uniform on [0, BETA], or on its multiples of alpha / epsilon."""
    rng = np.random.default_rng(seed)
    width = alpha / epsilon
    levels = math.ceil(BETA / width)
    scaled = rng.random(trials) * BETA / width
    if multiples:
        scaled = rng.integers(0, math.floor(BETA / width) + 1, trials).astype(np.float64)
    heights = np.floor(scaled + rng.random(trials)).astype(np.int64)
    p = 1 / (alpha + 2)
    found = simulate_heights(heights, levels, p, ones_after(p, collision), rng, estimator)
    return width * (found - scaled)


def count_errors(
    epsilon: float,
    gap: int,
    collision: float,
    trials: int,
    seed: int = 1,
    beta: float = BETA,
    estimator: Estimator = "argmax",
) -> Floats:
    """Errors for counts uniform on 0 .. beta with `gap` units per bit; gap 1 is Algorithm 10."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, math.floor(beta) + 1, trials)
    heights = np.floor(values / gap + rng.random(trials)).astype(np.int64)
    p = 1 / (gap * math.expm1(epsilon) + 2)
    q = ones_after(p, collision)
    return gap * simulate_heights(heights, math.ceil(beta / gap), p, q, rng, estimator) - values


def figure3(
    alphas: Sequence[float] = tuple(np.arange(0.5, 10.01, 0.5)),
    collisions: Sequence[float] = (0.0, 0.05, 0.1, 0.15, 0.2),
    trials: int = 4000,
) -> list[Row]:
    """Upper bound (a) and mean absolute error (b) over alpha, by collision probability and estimator."""
    rows: list[Row] = []
    for collision in collisions:
        for alpha in alphas:
            bound = error_bound(alpha, collision)
            rows.append({"curve": "bound", "alpha": alpha, "collision": collision, "error": bound})
            for estimator in _ESTIMATORS:
                error = float(np.abs(alp_errors(alpha, collision, trials, estimator=estimator)).mean())
                rows.append({"curve": estimator, "alpha": alpha, "collision": collision, "error": error})
    return rows


def figure4(collisions: Sequence[float] = (0.1, 0.01), trials: int = 100_000) -> list[Row]:
    """The error distribution at alpha = 3, epsilon = 1: moments, 90th percentile and extremes."""
    rows: list[Row] = []
    for collision in collisions:
        for estimator in _ESTIMATORS:
            errors = alp_errors(3, collision, trials, estimator=estimator)
            rows.append(
                {
                    "curve": estimator,
                    "collision": collision,
                    "mean_absolute": float(np.abs(errors).mean()),
                    "deviation": float(errors.std()),
                    "bias": float(errors.mean()),
                    "percentile_90": float(np.quantile(np.abs(errors), 0.9)),
                    "lowest": float(errors.min()),
                    "highest": float(errors.max()),
                }
            )
    return rows


def best_gap(epsilon: float, collision: float, trials: int, beta: float = BETA) -> tuple[int, float]:
    """The units per bit with the least mean error, and that error."""
    middle = 3 / math.expm1(epsilon)
    gaps = sorted({max(1, round(middle * factor)) for factor in (0.5, 0.75, 1, 1.5)})
    errors = {
        gap: float(np.abs(count_errors(epsilon, gap, collision, trials, beta=beta)).mean()) for gap in gaps
    }
    gap = min(errors, key=lambda tried: errors[tried])
    return gap, errors[gap]


def figure5(
    epsilons: Sequence[float] = (0.25, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 6, 8, 10), trials: int = 10_000
) -> list[Row]:
    """Mean error over epsilon: Algorithm 4, Algorithm 10 and c units per bit; 1/epsilon and e^-epsilon for scale.

    Collision probabilities as in the paper: none (s = infinity), 0.1 (s = 10k), and for Algorithm 10
    0.1 / epsilon and 0.1 / e^epsilon, 0.1 below epsilon = 1.
    """
    rows: list[Row] = []

    def add(curve: str, epsilon: float, error: float, **more: Any) -> None:
        rows.append({"curve": curve, "epsilon": epsilon, "error": error, **more})

    for epsilon in epsilons:
        for collision, size in ((0.0, "s = infinity"), (0.1, "s = 10k")):
            errors = alp_errors(3, collision, trials, epsilon=epsilon, multiples=True)
            add(f"Algorithm 4, {size}", epsilon, float(np.abs(errors).mean()))
        crowds = {
            "s = infinity": 0.0,
            "1/epsilon": 0.1 / max(1, epsilon),
            "e^-epsilon": 0.1 / math.exp(epsilon),
        }
        if epsilon < 1:
            crowds["e^-epsilon"] = 0.1
        for size, collision in crowds.items():
            errors = count_errors(epsilon, 1, collision, trials)
            add(f"Algorithm 10, {size}", epsilon, float(np.abs(errors).mean()))
            gap, error = best_gap(epsilon, collision, trials)
            add(f"c units per bit, {size}", epsilon, error, gap=gap)
        add("1/epsilon", epsilon, 1 / epsilon)
        add("e^-epsilon", epsilon, math.exp(-epsilon))
    return rows


def integer_gaps(
    epsilons: Sequence[float] = (0.25, 0.5, 1, 2), collision: float = 0.01, trials: int = 40_000
) -> list[Row]:
    """Algorithm 4, Algorithm 10 and the best c units per bit, for counts up to 100 / epsilon and up to BETA."""
    rows: list[Row] = []
    for epsilon in epsilons:
        for beta in (100 / epsilon, BETA):
            histogram = float(np.abs(count_errors(epsilon, 1, collision, trials, beta=beta)).mean())
            gap, error = best_gap(epsilon, collision, trials, beta)
            rows.append(
                {
                    "epsilon": epsilon,
                    "beta": beta,
                    "algorithm_10": histogram,
                    "gap": gap,
                    "c_units_per_bit": error,
                }
            )
    return rows


_TABLE_2: tuple[tuple[Algorithm, float, str, str, str], ...] = (
    ("laplace", 0.0, "d log u", "1", "1/eps"),
    ("threshold", 0.0, "k log(d + u)", "1", "log(d)/eps"),
    ("threshold-alp", 0.0, "k log(d + u)", "log d", "1/eps"),
    ("threshold", 1e-8, "k log(d + u)", "1", "log(1/delta)/eps"),
    ("threshold-alp", 1e-8, "k (log(d + u) + log(1/delta))", "log(1/delta)", "1/eps"),
    ("alp", 0.0, "n eps", "u eps", "1/eps"),
)


def table2(
    universe: int = 1 << 20, entries: int = 2000, largest: int = 10_000, epsilon: float = 1.0
) -> list[Row]:
    """Table 2 with numbers: the paper's orders beside bytes, cells read and errors measured on one vector.

    The vector has values spread evenly on a logarithmic scale, so small, middle and large ones weigh the same.
    The compact dense histogram of Balcer and Vadhan is not implemented here.
    """
    rng = np.random.default_rng(1)
    keys = rng.choice(universe, size=entries, replace=False).astype(np.uint64)
    values = np.round(np.exp(rng.random(entries) * math.log(largest))).astype(np.int64)
    rows: list[Row] = []
    for algorithm, delta, space, access, error in _TABLE_2:
        goal = Goal(
            epsilon=epsilon,
            delta=delta,
            universe=universe,
            max_nonzero=entries,
            max_value=largest,
            max_sum=float(values.sum()),
            algorithm=algorithm,
        )
        published = simulate((keys, values), goal, seed=1)
        errors = np.abs(published.release.query(keys).value - values)
        rows.append(
            {
                "algorithm": algorithm,
                "delta": delta,
                "order_of_bits": space,
                "order_of_access": access,
                "order_of_error": error,
                "bytes": sum(array.nbytes for part in published.release.arrays for array in part.values()),
                "cells_read": published.plan.chosen.reads,
                "mean_error": float(errors.mean()),
                "largest_error": float(errors.max()),
            }
        )
    return rows


#: Colours of collision probabilities from small to large.
_SHADES = ("#b9cfe8", "#86aad6", "#4f83bd", "#2a5d96", "#123a66")
#: Colour and line of the curves of Figure 5: the paper's muted, ours strong, for scale dotted.
_LINES = {
    "Algorithm 4, s = infinity": ("#8f9aa8", "-"),
    "Algorithm 4, s = 10k": ("#8f9aa8", "--"),
    "Algorithm 10, s = infinity": ("#a98d63", "-"),
    "Algorithm 10, 1/epsilon": ("#a98d63", "--"),
    "Algorithm 10, e^-epsilon": ("#a98d63", "-."),
    "c units per bit, s = infinity": ("#00695c", "-"),
    "c units per bit, 1/epsilon": ("#00695c", "--"),
    "c units per bit, e^-epsilon": ("#00695c", "-."),
    "1/epsilon": ("#c9c5bb", ":"),
    "e^-epsilon": ("#c9c5bb", ":"),
}
_TITLES = {
    "bound": "bound (Figure 3a)",
    "argmax": "measured (Figure 3b)",
    "median": "posterior median (ours)",
}


def draw_alphas(rows: Sequence[Row], path: Path) -> None:
    """Figure 3: errors over alpha, a panel for the bound and for each of two estimators, a line per collision."""
    figure = optional("matplotlib.figure", "plots").Figure(figsize=(11, 3.8), layout="constrained")
    for axes, (curve, title) in zip(figure.subplots(1, 3), _TITLES.items(), strict=True):
        for collision, colour in zip(sorted({row["collision"] for row in rows}), _SHADES, strict=False):
            points = [
                (row["alpha"], row["error"])
                for row in rows
                if row["curve"] == curve and row["collision"] == collision
            ]
            axes.plot(*zip(*points, strict=True), color=colour, label=f"{collision:g}")
        axes.set(xlabel="alpha", title=title, ylim=(0, None))
        _tidy(axes)
    figure.axes[0].set_ylabel("error")
    figure.axes[0].legend(title="collision", frameon=False, fontsize="small", loc="lower right", ncols=2)
    _write(figure, path)


def draw_epsilons(rows: Sequence[Row], path: Path) -> None:
    """Figure 5: mean errors over epsilon."""
    figure = optional("matplotlib.figure", "plots").Figure(figsize=(9, 4.6), layout="constrained")
    axes = figure.subplots()
    for curve, (colour, line) in _LINES.items():
        points = [(row["epsilon"], row["error"]) for row in rows if row["curve"] == curve and row["error"]]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, linestyle=line, label=curve)
    axes.set(xlabel="epsilon", ylabel="mean error", xscale="log", yscale="log")
    _tidy(axes)
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    _write(figure, path)


def _tidy(axes: Any) -> None:
    axes.grid(True, which="major", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _write(figure: Any, path: Path) -> None:
    image = io.BytesIO()
    figure.savefig(image, dpi=90, format="png")
    write_atomic(path, image.getvalue())
