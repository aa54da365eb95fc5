"""The paper on sparse distributions (Xiong et al.): Figures 1 and 2.

Everybody holds one key, drawn from a law that is (nearly) sparse; errors are l1 distances to that law. A job makes one
crowd of the largest size, shows it to every mechanism, and reads the estimates after the first 50,000, 100,000, ...
reports, so that the points of a curve share their first users.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from hubbub.device.client import privatize
from hubbub.experiments.accuracy import seed_of, total_variation_error
from hubbub.experiments.runner import Comparison, Experiment, Job, Request, Row, averaged
from hubbub.experiments.verdicts import Compared, stated
from hubbub.mechanisms.compressive import Compressive
from hubbub.mechanisms.hadamard import HadamardResponse
from hubbub.mechanisms.sparse_sum import SparseSum
from hubbub.model.mechanism import Mechanism
from hubbub.model.record import GRID, Entries
from hubbub.model.state import State
from hubbub.primitives.arrays import Floats, UInt64s
from hubbub.primitives.coins import InsecureCoins, SeedSource, SimulatedSeeds
from hubbub.primitives.envelope import write_atomic
from hubbub.primitives.errors import optional
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate
from hubbub.server.recovery.pursuit import pursue_noise, pursue_sparsity
from hubbub.server.recovery.simplex import least_squares, project, project_l1, project_sparse

ROWS, EPSILON = 500, 1.0
USERS = [50_000, 100_000, 200_000, 400_000, 600_000, 800_000, 1_000_000]
#: Keys with more than this are too many for least squares over the simplex to be part of a figure.
FEW_KEYS = 100_000
#: Law -> its name's number and the sparsity that is given to the algorithms: all but a tenth of the mass.
LAWS = {"Geo(0.8)": (0.8, 2), "Geo(0.6)": (0.6, 3), "Unif(10)": (10, 10), "Unif(25)": (25, 25)}
#: System -> colour and line: published ones muted, what is new here strong.
STYLES = {
    "HR": ("#c9c9c9", "-"),
    "HR, sparse projection": ("#9a9a9a", "-"),
    "one-bit HR": ("#c4a3b8", ":"),
    "one-bit HR, sparse projection": ("#b9a58a", "-"),
    "one-bit CP": ("#7fa8d1", "-"),
    "symmetric CP": ("#4a78a8", "--"),
    "CP, simplex least squares": ("#e69f00", "-"),
    "CP, noise level": ("#d1242f", "-"),
}


def law(name: str, keys: int, seed: int) -> Floats:
    """A probability per key; the keys that have any are drawn at random."""
    number, _ = LAWS[name]
    if name.startswith("Geo"):
        mass = number * (1 - number) ** np.arange(math.ceil(-40 / math.log(1 - number)))
    else:
        mass = np.ones(int(number))
    truth = np.zeros(keys)
    truth[np.random.default_rng(seed).choice(keys, len(mass), replace=False)] = mass / mass.sum()
    return truth


class DealtRows:
    """Rows dealt to users in turn, as the paper's groups i mod m: a source of seeds that are no surprise."""

    def __init__(self, rows: int) -> None:
        self._rows, self._next = rows, 0

    def draw(self, bits: int, count: int) -> UInt64s:
        places = np.arange(self._next, self._next + count, dtype=np.uint64)
        self._next += count
        return places % np.uint64(self._rows)


def states(
    mechanism: Mechanism, truth: Floats, users: list[int], seed: int, seeds: SeedSource
) -> Iterator[tuple[Task, State]]:
    """The state after each of these numbers of reports."""
    held = np.random.default_rng(seed).choice(len(truth), users[-1], p=truth).astype(np.uint64)
    entries = Entries(
        held, np.full(len(held), GRID, dtype=np.int64), np.arange(len(held) + 1, dtype=np.int64)
    )
    keys = {"kind": "closed", "size": len(truth), "salt": f"{seed:016x}" * 2}
    task = Task.parse({"name": "xiong", "keys": keys, "mechanism": mechanism})
    packed, _ = privatize(task, entries, InsecureCoins(seed + 1), seeds)
    state = None
    for start, stop in zip([0, *users], users, strict=False):
        state = aggregate(task, packed[start:stop], state)
        yield task, state


def measure(keys: int, population: str, users: list[int], repetition: int) -> list[Row]:
    """The l1 error of every system after every number of users, in one repetition."""
    seed = seed_of("xiong", keys, population, repetition)
    truth, sparsity = law(population, keys, seed), LAWS[population][1]
    bits = keys.bit_length()
    rows: list[Row] = []

    def note(count: int, system: str, found: Floats) -> None:
        about = {"population": population, "keys": keys, "users": count, "system": system}
        rows.append({**about, "l1": total_variation_error(found, truth)})

    def collect(mechanism: Mechanism, seeds: SeedSource) -> Iterator[tuple[Task, State]]:
        return states(mechanism, truth, users, seed, seeds)

    full = HadamardResponse(epsilon=EPSILON, bits=bits, blocks=1)
    # Seeds wide enough that every Walsh row is drawn about as often as any other.
    bit = SparseSum(epsilon=EPSILON, max_entries=1, noise="bit", clip=1, seed_bits=32)
    for name, mechanism in (("HR", full), ("one-bit HR", bit)):
        for task, state in collect(mechanism, SimulatedSeeds(seed + 2)):
            found = mechanism.moments(state, task.keys, task.keys.all_ids()).frequency
            assert found is not None
            if name == "one-bit HR":
                # The paper counts the rows that no user has as 0, which scales all estimates down.
                found = found * min(1.0, state.count / (1 << bits))
            note(state.count, name, project(found))
            note(state.count, f"{name}, sparse projection", project_sparse(found, sparsity))
    dealt = Compressive(epsilon=EPSILON, rows=ROWS, blocks=1)
    for task, state in collect(dealt, DealtRows(ROWS)):
        measured = dealt.measurements(state, task.keys)
        note(state.count, "one-bit CP", project_l1(pursue_sparsity(measured, sparsity).dense()))
        note(state.count, "CP, noise level", pursue_noise(measured).dense())
        if keys <= FEW_KEYS:
            note(state.count, "CP, simplex least squares", least_squares(measured))
    drawn = Compressive(epsilon=EPSILON, rows=ROWS // 2, blocks=1)
    for task, state in collect(drawn, SimulatedSeeds(seed + 3)):
        measured = drawn.measurements(state, task.keys)
        note(state.count, "symmetric CP", project_l1(pursue_sparsity(measured, sparsity).dense()))
    return rows


def draw(rows: Sequence[Row], path: Path) -> None:
    """One panel per law: l1 error over users."""
    figure = optional("matplotlib.figure", "plots").Figure(figsize=(17, 4.2), layout="constrained")
    panels = figure.subplots(1, len(LAWS))
    for axes, population in zip(panels, LAWS, strict=True):
        for system, (colour, line) in STYLES.items():
            points = [row for row in rows if (row["population"], row["system"]) == (population, system)]
            axes.errorbar(
                [row["users"] for row in points],
                [row["l1"] for row in points],
                [row.get("l1_error", 0.0) for row in points],
                label=system if points else None,
                color=colour,
                linestyle=line,
            )
        axes.set(title=population, xlabel="users", yscale="log")
    panels[0].set_ylabel("l1 error")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    image = io.BytesIO()
    figure.savefig(image, dpi=90)
    write_atomic(path, image.getvalue())


def summarize(rows: list[Row]) -> list[Row]:
    """Means over repetitions."""
    return averaged(rows, ["population", "keys", "users", "system"])


def remarks(rows: Sequence[Row]) -> str:
    """The table of the last point, and what is done differently."""
    last = max(row["users"] for row in rows)
    shown = {(row["population"], row["system"]): row["l1"] for row in rows if row["users"] == last}
    systems = [system for system in STYLES if any(key[1] == system for key in shown)]
    lines = [f"l1 error at {last:,} users, means over repetitions:", ""]
    lines += ["| system | " + " | ".join(LAWS) + " |", "|---" * (len(LAWS) + 1) + "|"]
    for system in systems:
        cells = " | ".join(f"{shown[population, system]:.3f}" for population in LAWS)
        lines.append(f"| {system} | {cells} |")
    text = """
The paper prints curves and no numbers. HR and one-bit HR are Hadamard response, projected onto the simplex; CP is
compressive privatization with m = 500 and orthogonal matching pursuit, the sparsity given, projected in l1. Its
symmetric form has 500 outcomes and therefore 250 rows, too few for 25 keys. As in the paper, rows are dealt in turn
for one-bit CP, and one-bit HR counts rows without users as 0. With fewer users than rows that scales its estimates down
(the paper's Figure 2 leaves those points out); projected onto the simplex they are pulled towards the uniform law on
the chosen keys, which is no merit where that happens to be the truth (Unif). The points of a
curve share their first users.

Not in the paper: "noise level" adds keys while one stands out from the noise, whose size is known, so nobody has to
know the sparsity; where the law is only nearly sparse (Geo) it keeps improving while the others stall at the mass they
leave out. "Simplex least squares" (10,000 keys only) needs no sparsity either."""
    return "\n".join(lines) + "\n" + text


def claims(rows: Sequence[Row]) -> Comparison:
    """What the paper says about both figures."""
    errors = {(row["population"], row["users"], row["system"]): row["l1"] for row in rows}

    def ahead(one: str, other: str, law: str, size: str) -> Compared:
        points = sorted({users for population, users, _ in errors if population == law})
        lost = [users for users in points if errors[law, users, one] > errors[law, users, other]]
        why = (
            "the law is not sparse: the mass of the keys left out stays, and HR overtakes"
            if law.startswith("Geo")
            else "with so few users the pursuit misses some of the keys"
        )
        places = ", ".join(f"{users:,}" for users in lost)
        ours = f"at {len(points) - len(lost)} of {len(points)} points"
        what = f"{law}: {one} has a smaller error than {other}"
        return stated(what, size, ours, not lost, f"not at {places} users; {why}")

    last = max(users for _, users, _ in errors)
    worst = max(
        abs(math.log(errors[law, last, "one-bit CP"] / errors[law, last, "HR, sparse projection"]))
        for law in LAWS
    )
    return [
        *(ahead("one-bit CP", "HR", law, "significantly") for law in LAWS),
        *(ahead("HR, sparse projection", "HR", law, "better") for law in LAWS),
        stated(
            f"one-bit CP is as accurate as HR with sparse projection: largest ratio at {last:,} users",
            "the same",
            f"{math.exp(worst):.2f}",
            worst < math.log(1.25),
        ),
    ]


def experiments() -> list[Experiment]:
    """Figure 1 (10,000 keys) and Figure 2 (a million)."""

    def jobs(keys: int, request: Request) -> list[Job]:
        repetitions, users = (2, [50_000, 200_000, 1_000_000]) if request.quick else (10, USERS)
        return [
            Job(measure, {"keys": keys, "population": name, "users": users, "repetition": repetition})
            for name in LAWS
            for repetition in range(repetitions)
        ]

    return [
        Experiment(
            f"xiong-fig{figure}",
            f"Sparse distributions over {keys:,} keys, epsilon = 1 (Xiong et al., Figure {figure})",
            partial(jobs, keys),
            draw,
            summarize,
            claims,
            remarks=remarks,
            theirs="the text",
        )
        for figure, keys in ((1, 10_000), (2, 1_000_000))
    ]
