"""The paper on value lists (Girgis, Data, Diggavi): its three algorithms, their theorems, and what else answers.

The paper has no figures. Its theorems bound three losses of a list of estimates, l2^2, l1 and l_inf, up to constants;
the constants that its proofs give are filled in here (`theorem`), so that measured losses can be held against them.
Values are in units of their range, b = 1. Everybody holds one key, and all who hold a key have the same value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hubbub.experiments.accuracy import largest_error, seed_of, total_variation_error
from hubbub.experiments.runner import Comparison, Experiment, Job, Request, Row, averaged
from hubbub.experiments.verdicts import bounded
from hubbub.mechanisms.freq_est import BitRates, FreqEst, cut_off
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.mechanism import Mechanism
from hubbub.model.record import GRID, Entries
from hubbub.primitives.arrays import Floats
from hubbub.protocol.task import Task
from hubbub.simulation.rehearsal import simulate

Shape = Literal["equal", "skewed"]

LOSSES = ("l2_squared", "l1", "l_inf")
#: The paper's algorithm for each question.
OWN = {"frequencies": "FREQ-EST", "values, frequencies known": "DIST-EST-AS", "values": "DIST-EST"}


@dataclass(frozen=True)
class Crowd:
    """Who holds what: the shares are exact, and the floor (the paper's delta) is half the least of them."""

    users: int
    keys: int
    shape: Shape

    @property
    def shares(self) -> Floats:
        weight = np.arange(1, self.keys + 1) ** (0.0 if self.shape == "equal" else -1.0)
        ends = np.rint(np.cumsum(weight) / weight.sum() * self.users)
        shares: Floats = np.diff(ends, prepend=0) / self.users
        return shares

    @property
    def floor(self) -> float:
        return float(self.shares.min()) / 2

    @property
    def values(self) -> Floats:
        """The value of every key, scaled to [-1, 1]."""
        return np.random.default_rng(seed_of("values", self.keys)).uniform(-1, 1, self.keys)

    def entries(self, mechanism: Mechanism) -> Entries:
        """The records; a mechanism for sets has no use for the values."""
        held = np.repeat(np.arange(self.keys), np.rint(self.shares * self.users).astype(np.int64))
        values = np.ones(self.users) if mechanism.values == "set" else self.values[held]
        grid = np.rint(values * GRID).astype(np.int64)
        return Entries(held.astype(np.uint64), grid, np.arange(self.users + 1, dtype=np.int64))


def systems(crowd: Crowd, epsilon: float) -> dict[tuple[str, str], Mechanism]:
    """What answers which question: the paper's algorithm, then CoCo and sketch response with one entry."""

    def make(name: str, **parameters: Any) -> Mechanism:
        return make_mechanism(name, epsilon=epsilon, max_entries=1, **parameters)

    frequencies, known, values = OWN
    shares = tuple(crowd.shares.tolist())
    return {
        (frequencies, OWN[frequencies]): make("freq_est", size=crowd.keys, floor=crowd.floor),
        (frequencies, "coco"): make("coco", target="frequency"),
        (frequencies, "sketch_response"): make("sketch_response"),
        (known, OWN[known]): make("value_list", size=crowd.keys, frequencies=shares),
        (known, "coco"): make("coco", target="mean"),
        (known, "sketch_response"): make("sketch_response", values="signed", mode="signed"),
        (values, OWN[values]): make("value_list", size=crowd.keys, floor=crowd.floor),
        (values, "coco"): make("coco", target="conditional"),
        (values, "sketch_response"): make("sketch_response", values="signed", mode="events"),
    }


def measure(users: int, keys: int, shape: Shape, epsilon: float, repetition: int) -> list[Row]:
    """One collection by every system: its losses and its bytes."""
    crowd = Crowd(users, keys, shape)
    setting = {"users": users, "keys": keys, "shape": shape, "epsilon": epsilon}
    rows = []
    for (question, system), mechanism in systems(crowd, epsilon).items():
        seed = seed_of(*setting.values(), repetition, question, system)
        answer = {"question": question, "system": system, "bytes": mechanism.layout.width}
        rows.append(setting | answer | losses(question, mechanism, crowd, seed))
    return rows


def losses(question: str, mechanism: Mechanism, crowd: Crowd, seed: int) -> Row:
    """The paper's three losses in one collection.

    All systems' frequencies are cut off below at the floor, as the paper does.
    """
    described = {"kind": "closed", "size": crowd.keys, "salt": f"{seed:032x}"}
    task = Task.parse({"name": "value list", "keys": described, "mechanism": mechanism})
    state = simulate(task, crowd.entries(mechanism), seed).state
    found = mechanism.moments(state, task.keys, task.keys.all_ids())
    share = crowd.shares
    if question != "values, frequencies known":
        assert found.frequency is not None
        share = cut_off(found.frequency, crowd.floor)
    if question == "frequencies":
        estimate, truth = share, crowd.shares
    else:
        assert found.mean is not None
        # A range of [-1, 1] is two wide.
        estimate, truth = found.mean / share / 2, crowd.values / 2
    total, largest = total_variation_error(estimate, truth), largest_error(estimate, truth)
    return {"l2_squared": float(((estimate - truth) ** 2).sum()), "l1": total, "l_inf": largest}


def theorem(question: str, crowd: Crowd, epsilon: float) -> Row:
    """Theorems 1 to 3 with the constants of their proofs, for b = 1.

    The first bound is the sum of the keys' variances: of the noise, 8 / eps^2, and of a frequency's bits (equality in
    Theorems 1 and, without a floor, 3). In Theorem 2 the stages have eps / 2 each, and 1 / frequency is at most
    1 / floor; the paper's proof writes 8 / eps^2 there, too, which belongs to all of eps. The l1 bound is
    sqrt(keys * first). The l_inf bound is the usual one for maxima, s sqrt(2 ln(2 keys)): Hoeffding's s for bits, and
    s = 4 / eps for Laplace noise of scale 2 / eps (users >= 2 ln(2 keys)). Theorem 2 has none.
    """
    n, d, shares = crowd.users, crowd.keys, crowd.shares
    maximum = math.sqrt(2 * math.log(2 * d) / n)
    rates = BitRates(*FreqEst(epsilon=epsilon if question == "frequencies" else epsilon / 2, size=1).weights)
    row: Row = {}
    if question == "frequencies":
        squares = d * rates.variance(n)
        row["l_inf"] = maximum * (rates.favoured + rates.other) / (rates.favoured - rates.other) / 2
    elif question == "values":
        squares = d / crowd.floor**2 * (32 / epsilon**2 / n + rates.variance(n))
    else:
        squares = 8 / epsilon**2 / n * float((1 / shares**2).sum())
        row["l_inf"] = maximum * 4 / epsilon / float(shares.min())
    return {"l2_squared": squares, "l1": math.sqrt(d * squares)} | row


def summarize(rows: list[Row]) -> list[Row]:
    """Means over repetitions with standard errors; the theorems' bounds beside the paper's own algorithms."""
    means = averaged(rows, by=["users", "keys", "shape", "epsilon", "question", "system", "bytes"])
    for row in means:
        if row["system"] == OWN[row["question"]]:
            bounds = theorem(row["question"], Crowd(row["users"], row["keys"], row["shape"]), row["epsilon"])
            row |= {f"{loss}_bound": bound for loss, bound in bounds.items()}
    return [
        {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in row.items()}
        for row in means
    ]


def setting_words(row: Row) -> str:
    return f"{row['keys']} keys, {row['shape']} frequencies, epsilon {row['epsilon']:g}"


_FLOOR = "estimates below the floor are cut, which the formula leaves out"


def against_theorems(rows: Sequence[Row]) -> Comparison:
    """Every bound, and the loss that was measured."""
    number = {system: theorem for theorem, system in ((3, "FREQ-EST"), (1, "DIST-EST-AS"), (2, "DIST-EST"))}
    return [
        bounded(
            f"{row['system']} (Theorem {number[row['system']]}), {loss}, {setting_words(row)}",
            row[f"{loss}_bound"],
            row[loss],
            row[f"{loss}_error"],
            equality=loss == "l2_squared" and row["system"] in ("DIST-EST-AS", "FREQ-EST"),
            below="estimates below the floor are cut, which the formula leaves out"
            if row["system"] == "FREQ-EST"
            else "",
        )
        for row in rows
        for loss in LOSSES
        if f"{loss}_bound" in row
    ]


def side_by_side(rows: Sequence[Row]) -> str:
    """Error and bytes of the paper's algorithm, CoCo and sketch response, in one line per question and setting."""
    groups: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault((row["question"], setting_words(row)), {})[row["system"]] = row
    lines = [
        "The paper prints no measurements, only formulas. The first column has them worked out for these settings, "
        "with the constants of the paper's proofs; in Theorem 2 the stages have epsilon / 2 each, for which the "
        "proof's 8 / epsilon^2 becomes 32 / epsilon^2. For the squared loss, Theorems 1 and 3 are equalities (it is "
        "the sum of the variances), so half of all measured means lie above: the verdict says by how many standard "
        "errors. The l1 and l_inf columns and Theorem 2 are bounds, and measured losses lie below them by what "
        "Cauchy-Schwarz, a union bound and the least frequency leave.",
        "",
        f"Root of the l2^2 loss per key, and bytes of a report; {rows[0]['users']:,} users with one entry each, values "
        "in units of their range.",
        "",
        "| question | setting | the paper's | coco | sketch_response |",
        "|---|---|---|---|---|",
    ]
    for (question, setting), found in groups.items():
        cells = [
            f"{math.sqrt(found[system]['l2_squared'] / found[system]['keys']):.3g} ({found[system]['bytes']} bytes)"
            for system in (OWN[question], "coco", "sketch_response")
        ]
        lines.append(f"| {question} | {setting} | {' | '.join(cells)} |")
    return "\n".join(lines)


def jobs(request: Request) -> list[Job]:
    """Sixteen keys and a few repetitions; in full also 64 keys."""
    return [
        Job(
            measure,
            {"users": 100_000, "keys": keys, "shape": shape, "epsilon": epsilon, "repetition": repetition},
        )
        for repetition in range(4 if request.quick else 20)
        for keys in ((16,) if request.quick else (16, 64))
        for shape in ("equal", "skewed")
        for epsilon in (1.0, 4.0)
    ]


def experiments() -> list[Experiment]:
    """One table: losses against theorems, and error and bytes side by side with what else answers."""
    return [
        Experiment(
            "girgis-losses",
            "Value lists: losses against Theorems 1 to 3, and other ways to ask (Girgis et al.)",
            jobs,
            summarize=summarize,
            published=against_theorems,
            theirs="the theorem's formula",
            remarks=side_by_side,
        )
    ]
