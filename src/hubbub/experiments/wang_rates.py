"""Figures 4 and 5 of Wang et al.: how Collision and CoCo depend on the number of outputs t, beside sketch response.

A report of a record with s entries names a key with a sign with probability P_t if the record has it, P_o if the record
has the key with the other sign, and P_f if the record does not have the key.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hubbub.device.client import privatize
from hubbub.experiments.runner import Comparison, Experiment, Job, Request, Row
from hubbub.experiments.verdicts import claimed, stated
from hubbub.mechanisms.coco import CoCo
from hubbub.mechanisms.collision import Collision
from hubbub.mechanisms.registry import make_mechanism
from hubbub.mechanisms.sketch_response import SketchResponse
from hubbub.model.mechanism import Mechanism, Quantity
from hubbub.model.record import GRID
from hubbub.primitives.arrays import Floats, UInt64s
from hubbub.primitives.coins import InsecureCoins, SimulatedSeeds
from hubbub.primitives.errors import optional
from hubbub.protocol.task import Task
from hubbub.simulation.populations import Population, uniform_population

Rates = tuple[float, float, float]

KEYS, ENTRIES, EPSILON = 128, 8, 0.5
RUNS = 10_000
#: From the least that CoCo allows, 2s + 2.
SIZES = (18, 20, 22, 24, 26, 28, 30, 32, 36, 40, 48, 56, 64, 80, 96, 128)
FEW_SIZES = (18, 24, 32, 48, 96)
STYLES = {
    "Collision": ("#7fa8d1", "o"),
    "CoCo": ("#4a78a8", "X"),
    "sketch_response, events": ("#009e73", "s"),
    "sketch_response, signed": ("#d1242f", "D"),
}


def published_coco(epsilon: float, entries: int, **parameters: Any) -> Mechanism:
    """CoCo as Theorem 7 sets it up for means: the least even t that is at least s e^eps + s + 2, random hashing."""
    pairs = math.ceil((entries * math.exp(epsilon) + entries + 2) / 2)
    chosen = {"family": "prf", "buckets": pairs, **parameters}
    return make_mechanism("coco", epsilon=epsilon, max_entries=entries, **chosen)


def mechanisms_with(outputs: int) -> dict[str, Mechanism]:
    """The compared mechanisms with `outputs` possible outputs under each seed."""
    common: dict[str, Any] = {"epsilon": EPSILON, "max_entries": ENTRIES, "values": "signed", "family": "prf"}
    ours = {**common, "seeds": 1}
    return {
        "Collision": Collision(**common, buckets=outputs),
        "CoCo": CoCo(**common, buckets=outputs // 2),
        "sketch_response, events": SketchResponse(**ours, mode="events", buckets=outputs),
        "sketch_response, signed": SketchResponse(**ours, mode="signed", buckets=outputs // 2),
    }


def rates_of(mechanism: Mechanism) -> Rates:
    """(P_t, P_o, P_f), from the mechanism's own formulas."""
    if isinstance(mechanism, CoCo):
        return mechanism.rates
    if isinstance(mechanism, SketchResponse) and mechanism.mode == "signed":
        # The variance of one report about a held key is ((P_t + P_o) - kappa^2) / kappa^2, with kappa = P_t - P_o.
        gap = mechanism.kappa
        either = gap**2 * (mechanism.variance("mean", 1, frequency=1.0, square=1.0) + 1)
        return (either + gap) / 2, (either - gap) / 2, 1 / (2 * mechanism.buckets)
    assert isinstance(mechanism, Collision | SketchResponse)
    return mechanism.rates.held, mechanism.rates.absent, mechanism.rates.absent


def rates_over_sizes(sizes: list[int]) -> list[Row]:
    """Figure 4: exact rates for every t."""
    rows = []
    for outputs in sizes:
        for name, mechanism in mechanisms_with(outputs).items():
            own, opposite, absent = rates_of(mechanism)
            row: Row = {"t": outputs, "mechanism": name, "P_t": own, "P_o": opposite, "P_f": absent}
            rows.append({**row, "P_t / P_o": own / opposite})
    return rows


def named_sides(task: Task, crowd: Population, seed: int) -> tuple[Floats, Floats]:
    """Which keys every user's report names with + and with -, as [users, keys], through the real reports."""
    mechanism, keys = task.mechanism, task.keys
    packed, _ = privatize(task, crowd.entries, InsecureCoins(seed), SimulatedSeeds(seed + 1))
    reports = mechanism.layout.unpack(packed)
    ids = keys.all_ids()

    def votes(asked: UInt64s) -> Floats:
        return np.stack(
            [mechanism.scores(keys, reports, asked[i : i + 1]) for i in range(len(asked))], axis=1
        )

    if mechanism.sided:
        return votes(ids), votes(keys.other_side(ids))
    signed = votes(ids)
    return np.maximum(signed, 0), np.maximum(-signed, 0)


def errors_at(outputs: int, runs: int) -> list[Row]:
    """Figure 5: mean squared errors, summed over keys, of estimates from one report; one row per mechanism.

    Every run has a fresh record, seed and report. The estimates are those of the mechanisms for one report.
    """
    seed = int.from_bytes(hashlib.sha256(json.dumps([outputs, runs]).encode()).digest()[:7], "little")
    crowd = uniform_population(runs, KEYS, ENTRIES, seed)
    held = np.zeros((runs, KEYS))
    held[np.repeat(np.arange(runs), ENTRIES), crowd.entries.ids.astype(np.int64)] = (
        crowd.entries.values / GRID
    )
    rows = []
    for name, mechanism in mechanisms_with(outputs).items():
        described = {"kind": "closed", "size": KEYS, "salt": f"{seed:032x}"}
        task = Task.parse({"name": name, "keys": described, "mechanism": mechanism})
        plus, minus = named_sides(task, crowd, seed)
        own, opposite, absent = rates_of(mechanism)
        row: Row = {"t": outputs, "mechanism": name, "runs": runs}
        mean = (plus - minus) / (own - opposite)
        row |= _squares("minus", mean - held, mechanism)
        if "frequency" in mechanism.quantities:
            frequency = (plus + minus - 2 * absent) / (own + opposite - 2 * absent)
            row |= _squares("plus", frequency - np.abs(held), mechanism)
            sides = np.concatenate(
                [frequency + mean - np.abs(held) - held, frequency - mean - np.abs(held) + held], 1
            )
            row |= _squares("frequency", sides / 2, None)
        rows.append(row)
    return rows


def _squares(what: str, wrong: Floats, mechanism: Mechanism | None) -> Row:
    """The mean over runs of the summed squares with its standard error, and what the variance formula predicts."""
    sums = (wrong**2).sum(axis=1)
    row = {f"{what}_error": sums.mean(), f"{what}_standard": sums.std(ddof=1) / math.sqrt(len(sums))}
    if mechanism is not None:
        quantity: Quantity = "mean" if what == "minus" else "frequency"
        present = mechanism.variance(quantity, 1, frequency=1.0, square=1.0)
        missing = mechanism.variance(quantity, 1)
        row[f"{what}_predicted"] = ENTRIES * present + (KEYS - ENTRIES) * missing
    return {name: float(f"{value:.6g}") for name, value in row.items()}


def _panels(columns: dict[str, str]) -> Callable[[Sequence[Row], Path], None]:
    """A picture with a panel for each column, over t; what is far above the lowest is cut off."""

    def draw(rows: Sequence[Row], path: Path) -> None:
        figure = optional("matplotlib.figure", "plots").Figure(figsize=(12.5, 3.6), layout="constrained")
        for panel, (column, title) in zip(figure.subplots(1, len(columns)), columns.items(), strict=True):
            for name, (colour, marker) in STYLES.items():
                shown = [row for row in rows if row["mechanism"] == name and column in row]
                x, y = [row["t"] for row in shown], [row[column] for row in shown]
                if shown:
                    panel.plot(x, y, color=colour, marker=marker, markersize=4, linewidth=1.3, label=name)
            if column == "P_o":
                sizes = sorted({row["t"] for row in rows})
                panel.plot(sizes, [1 / t for t in sizes], "k--", linewidth=1, label="P_f = 1 / t, for all")
            found = [row[column] for row in rows if column in row]
            if max(found) > 4 * min(found) and "error" in column:
                panel.set_ylim(0.8 * min(found), 4 * min(found))
            panel.set(title=title, xlabel="outputs t")
            panel.grid(alpha=0.25)
        handles = {
            label: handle
            for panel in figure.axes
            for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        figure.legend(handles.values(), handles.keys(), loc="outside right upper", fontsize="small")
        figure.savefig(path, dpi=90)

    return draw


def _lowest(rows: Sequence[Row], mechanism: str, column: str) -> float:
    return min(float(row[column]) for row in rows if row["mechanism"] == mechanism)


def _claims(rows: Sequence[Row]) -> Comparison:
    saved = 1 - _lowest(rows, "CoCo", "minus_error") / _lowest(rows, "Collision", "minus_error")
    what = "mean estimator: lowest error of CoCo below the lowest of Collision, in percent (text: about 20)"
    return [claimed(what, 20, 100 * saved)]


def _rates(rows: Sequence[Row]) -> Comparison:
    """CoCo forces opposite collisions below false ones (Section 8.3)."""
    worst = max(row["P_o"] / row["P_f"] for row in rows if row["mechanism"] == "CoCo")
    return [
        stated(
            "CoCo: opposite collisions over false ones, largest over t", "below 1", f"{worst:.3f}", worst < 1
        )
    ]


def _rates_text(rows: Sequence[Row]) -> str:
    worst = max(row["P_o"] / row["P_f"] for row in rows if row["mechanism"] == "CoCo")
    ours = max(row["P_o"] / row["P_f"] for row in rows if row["mechanism"] == "sketch_response, signed")
    return (
        f"d = {KEYS}, s = {ENTRIES}. The caption gives no epsilon; {EPSILON:g} is taken, as in Figure 5. All numbers "
        "are exact, from the formulas that the estimates use; the tests compare them with simulated reports. "
        f"Collision does not tell the opposite sign from an absent key, P_o = P_f. For CoCo P_o is at most {worst:.3f} "
        f"P_f over these t, below it as the paper says, and for `sketch_response, signed` at most {ours:.3f} P_f. For "
        "sketch response t counts buckets and sides under its one seed, and the best number of favoured outputs is "
        "taken for each t; it also works for t below 2s + 2, which is not shown."
    )


def _errors_text(rows: Sequence[Row]) -> str:
    off = max(
        abs(row[f"{what}_error"] - row[f"{what}_predicted"]) / row[f"{what}_standard"]
        for row in rows
        for what in ("minus", "plus")
        if f"{what}_error" in row
    )
    ours = 1 - _lowest(rows, "sketch_response, signed", "minus_error") / _lowest(rows, "CoCo", "minus_error")
    events = 1 - _lowest(rows, "sketch_response, events", "plus_error") / _lowest(rows, "CoCo", "plus_error")
    return (
        f"d = {KEYS}, s = {ENTRIES}, n = 1, epsilon = {EPSILON:g}; {rows[0]['runs']:,} independent runs for each t, "
        "every one with a fresh record, seed and report. Squared errors are summed over keys: Minus Error is that of "
        "the mean (+ minus -), Plus Error that of the frequency (+ plus -), Frequency Error that of both signs' "
        "frequencies, 2d of them. All use keyed hashing, since t is not always a power of two. The columns "
        f"`..._predicted` come from the variance formula; the largest distance is {off:.1f} standard errors. Each at "
        f"its best t, `sketch_response, signed` has a Minus Error {100 * ours:.0f}% below CoCo's, and "
        f"`sketch_response, events` a Plus Error {100 * events:.0f}% below."
    )


def experiments() -> list[Experiment]:
    """Figures 4 and 5."""

    def sizes(request: Request) -> list[int]:
        return list(FEW_SIZES if request.quick else SIZES)

    return [
        Experiment(
            "wang-fig4",
            "Collision rates over the number of outputs (Wang et al., Figure 4)",
            lambda request: [Job(rates_over_sizes, {"sizes": list(SIZES)})],
            _panels({"P_t": "true, P_t", "P_o": "opposite, P_o", "P_t / P_o": "P_t / P_o"}),
            published=_rates,
            theirs="the text",
            remarks=_rates_text,
        ),
        Experiment(
            "wang-fig5",
            "Errors over the number of outputs (Wang et al., Figure 5)",
            lambda request: [Job(errors_at, {"outputs": t, "runs": RUNS}) for t in sizes(request)],
            _panels(
                {
                    "minus_error": "Minus Error",
                    "plus_error": "Plus Error",
                    "frequency_error": "Frequency Error",
                }
            ),
            published=_claims,
            remarks=_errors_text,
        ),
    ]
