"""A year of weeks: memoized reports beside RAPPOR, dBitFlipPM and LOLOHA, at one loss over all time.

Everybody holds one key, and few exchange it in a week. All four protocols answer a value that was there before with the
noise that it got then, so what they lose over all time is epsilon for each value that gets noise of its own. That is
what is held equal:

- RAPPOR (Erlingsson et al. 2014): a bit for each key, the permanent response memoized for each value: so many times
  epsilon as there are keys. With our cap, which is not in the paper, for the first values only. Two forms: symmetric
  bits as published, and those of OUE (Arcolezi et al. 2022), which have the least error.
- dBitFlipPM (Ding et al. 2017): d of the bits, drawn once. (d + 1) epsilon.
- LOLOHA (Arcolezi et al. 2023): the value's hash among g, by a hash function that a person keeps. g epsilon.
- hubbub: the first `cap` records. cap epsilon.

RAPPOR and LOLOHA may add fresh noise to every report, a second round, so that one report alone says less than epsilon
and other bytes do not prove a change. It has no part in the loss over all time and only adds to the error: rows without
it show these protocols at their best, rows with it as published (half of epsilon for one report). Where a protocol has
a parameter, the best of a list is taken, by the error of the last week.

    python benchmarks/longitudinal.py [--runs 3]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubbub.device.client import privatize
from hubbub.mechanisms.registry import make_mechanism
from hubbub.model.mechanism import Mechanism
from hubbub.primitives.coins import InsecureCoins, SimulatedSeeds
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate
from hubbub.simulation.panel import Panel, said_when, slow_panel
from page import Headline, Section, prose, table, times
from timing import Row

Floats = NDArray[np.float64]
#: From a panel and a random generator to estimates, weeks by keys, and to how many values of a person got noise.
Collect = Callable[[Panel, np.random.Generator], tuple[Floats, float]]
WEEKS, DRIFT = 52, 0.5
OURS, SETS = "hubbub, memoized", "hubbub, memoized: 4 keys a person"
CAPS = (1, 2, 3, 4, 6)
#: People, the share of them who change in a week, the loss over all time, and how many crowds are averaged.
CASES = (
    (20_000, 0.02, 2.0, 2),
    (20_000, 0.02, 4.0, 3),
    (20_000, 0.02, 8.0, 2),
    (20_000, 0.1, 4.0, 2),
    (100_000, 0.02, 4.0, 1),
)


@dataclass(frozen=True)
class Candidate:
    """A protocol with its parameters."""

    name: str
    setting: str
    #: Of one value or record, and how many of them get noise of their own.
    epsilon: float
    distinct: int
    collect: Collect


def numbered(said: Any) -> tuple[Any, Any]:
    """The rows that are said at all, and `said` with their places among these."""
    is_said = np.bincount(said.ravel()) > 0
    return np.flatnonzero(is_said), (np.cumsum(is_said) - 1)[said]


# RAPPOR


@dataclass(frozen=True)
class Unary:
    """A bit per key: 1 is said of the own key with probability `own`, of others with `other`; then perhaps flipped."""

    own: float
    other: float
    kept: float = 1.0

    @classmethod
    def symmetric(cls, epsilon: float) -> Unary:
        own = 1 / (1 + math.exp(-epsilon / 2))
        return cls(own, 1 - own)

    @classmethod
    def optimized(cls, epsilon: float) -> Unary:
        return cls(0.5, 1 / (math.exp(epsilon) + 1))

    def shown(self, memoized: float) -> float:
        """The probability of a 1 after the second round, from that of a memoized 1."""
        return memoized * self.kept + (1 - memoized) * (1 - self.kept)

    def loss(self) -> float:
        """The epsilon of one report: two bits differ."""
        own, other = self.shown(self.own), self.shown(self.other)
        return math.log(own * (1 - other) / ((1 - own) * other))

    def with_second_round(self, epsilon: float) -> Unary:
        """The same with bits flipped such that one report has this epsilon."""
        low, high = 0.5, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            too_little = Unary(self.own, self.other, middle).loss() < epsilon
            low, high = (middle, high) if too_little else (low, middle)
        return Unary(self.own, self.other, low)

    def collect(self, cap: int) -> Collect:
        """Values beyond the cap are answered as in hubbub."""

        def run(panel: Panel, rng: np.random.Generator) -> tuple[Floats, float]:
            said = said_when(panel.held, cap)
            rows, weeks = numbered(said)
            values = panel.entries.ids.astype(np.int64)[rows]
            chance = np.full((len(rows), panel.keys), self.other, dtype=np.float32)
            chance[np.arange(len(rows)), values] = self.own
            bits = rng.random(chance.shape, dtype=np.float32) < chance
            speakers = np.array([np.bincount(now, minlength=len(rows)) for now in weeks], dtype=np.float32)
            ones = (speakers @ bits.astype(np.float32)).astype(np.int64)
            if self.kept < 1:  # bits are flipped one by one, anew: some ones stay, and some zeros turn
                zeros = said.shape[1] - ones
                ones = rng.binomial(ones, self.kept) + rng.binomial(zeros, 1 - self.kept)
            own, other = self.shown(self.own), self.shown(self.other)
            return (ones / said.shape[1] - other) / (own - other), len(rows) / said.shape[1]

        return run


# dBitFlipPM


def bit_flip(bits: int, epsilon: float) -> Collect:
    """Each person has `bits` of the keys, drawn once, and an answer for each of them, and for none of them."""

    def run(panel: Panel, rng: np.random.Generator) -> tuple[Floats, float]:
        people, true = panel.held.shape[1], 1 / (1 + math.exp(-epsilon / 2))
        mine = np.argpartition(rng.random((people, panel.keys)), bits - 1, axis=1)[:, :bits]
        chance = np.full((people, bits + 1, bits), 1 - true)
        chance[:, np.arange(bits), np.arange(bits)] = true
        answers = rng.random(chance.shape) < chance
        asked = np.bincount(mine.ravel(), minlength=panel.keys)
        values, found = panel.entries.ids.astype(np.int64), []
        used = np.zeros((people, bits + 1), dtype=bool)
        for now in panel.held:
            matches = mine == values[now][:, None]
            which = np.where(matches.any(axis=1), matches.argmax(axis=1), bits)
            said = answers[np.arange(people), which]
            used[np.arange(people), which] = True
            ones = np.bincount(mine.ravel(), weights=said.ravel(), minlength=panel.keys)
            found.append((ones / np.maximum(asked, 1) - (1 - true)) / (2 * true - 1))
        return np.array(found), used.sum() / people

    return run


# LOLOHA


def hashed(buckets: int, epsilon: float, first: float | None = None) -> Collect:
    """Each person keeps a hash function, and an answer for each bucket; with `first`, a second round such that one
    report has that epsilon."""
    p1 = math.exp(epsilon) / (math.exp(epsilon) + buckets - 1)
    q1, p2 = (1 - p1) / (buckets - 1), 1.0

    def shown(kept: float) -> tuple[float, float]:
        """The probability of the own bucket, and of another one, if a memoized one is kept with this probability."""
        moved = (1 - kept) / (buckets - 1)
        return p1 * kept + (1 - p1) * moved, p1 * moved + q1 * kept + (1 - p1 - q1) * moved

    if first is not None:  # the ratio grows with p2, and own - ratio * other is linear in it
        at = [shown(kept)[0] - math.exp(first) * shown(kept)[1] for kept in (0.0, 1.0)]
        p2 = at[0] / (at[0] - at[1])

    def run(panel: Panel, rng: np.random.Generator) -> tuple[Floats, float]:
        people = panel.held.shape[1]
        maps = rng.integers(0, buckets, (people, panel.keys))
        memo = _respond(np.tile(np.arange(buckets), (people, 1)), p1, buckets, rng)
        values, everybody = panel.entries.ids.astype(np.int64), np.arange(people)
        mine = maps[everybody, values[panel.held]]
        used = np.array([(mine == bucket).any(axis=0) for bucket in range(buckets)])
        said = memo[everybody, mine]
        if first is not None:
            said = _respond(said, p2, buckets, rng)
        support = np.zeros((len(said), panel.keys))
        for bucket in range(buckets):
            support += (said == bucket).astype(np.float32) @ (maps == bucket).astype(np.float32)
        return (support / people - 1 / buckets) / (shown(p2)[0] - 1 / buckets), used.sum() / people

    return run


def _respond(values: Any, kept: float, buckets: int, rng: np.random.Generator) -> Any:
    """Randomized response: the value, or any of the others."""
    other = (values + rng.integers(1, buckets, values.shape)) % buckets
    return np.where(rng.random(values.shape) < kept, values, other)


# hubbub


def ours(epsilon: float, cap: int, keys: int, entries: int, people: int) -> tuple[str, Collect]:
    """The mechanism with the least predicted error, through the code that devices and servers run."""
    mechanism = best_mechanism(epsilon, keys, entries, people)
    rules = {"period": "week", "memoize": "record", "memoize_cap": cap}

    def run(panel: Panel, rng: np.random.Generator) -> tuple[Floats, float]:
        task = Task.parse(
            {"name": "year", "keys": {"kind": "closed", "size": keys}, "mechanism": mechanism, **rules}
        )
        seed = int(rng.integers(1 << 30))
        said = said_when(panel.held, cap)
        rows, places = numbered(said)
        packed, _ = privatize(task, panel.entries.take(rows), InsecureCoins(seed), SimulatedSeeds(seed))
        ids, _ = task.keys.known([str(key) for key in range(keys)])
        weeks = (aggregate(task, packed[now].tobytes()) for now in places)
        shares = [task.mechanism.moments(state, task.keys, ids).frequency for state in weeks]
        return np.array(shares), len(rows) / said.shape[1]

    return mechanism.name, run


def best_mechanism(epsilon: float, keys: int, entries: int, people: int) -> Mechanism:
    """Of the mechanisms for sets."""
    names = ("collision", "sketch_response", *(("hadamard", "local_hashing") if entries == 1 else ()))
    found = [make_mechanism(name, epsilon=epsilon, max_entries=entries) for name in names]
    return min(found, key=lambda each: each.variance("frequency", people, frequency=entries / keys))


# The table


def candidates(loss: float, keys: int, people: int) -> Iterator[Candidate]:
    """Every protocol with every setting worth trying, at this loss over all time."""
    for cap in CAPS:
        epsilon = loss / cap
        name, collect = ours(epsilon, cap, keys, 1, people)
        yield Candidate(OURS, f"cap {cap}, {name}", epsilon, cap, collect)
        for form, bits in (("symmetric", Unary.symmetric(epsilon)), ("optimized", Unary.optimized(epsilon))):
            where = f"cap {cap}"
            yield Candidate(f"RAPPOR, {form}, with our cap", where, epsilon, cap, bits.collect(cap))
            both = bits.with_second_round(epsilon / 2)
            yield Candidate(
                f"RAPPOR, {form}, with our cap, two rounds", where, epsilon, cap, both.collect(cap)
            )
    plain = Unary.symmetric(loss / keys)
    yield Candidate("RAPPOR", "no cap", loss / keys, keys, plain.collect(WEEKS))
    for bits_sent in (1, 2, 3, 4, 8):
        epsilon = loss / (bits_sent + 1)
        flip = bit_flip(bits_sent, epsilon)
        yield Candidate("dBitFlipPM", f"d = {bits_sent}", epsilon, bits_sent + 1, flip)
    for buckets in (2, 3, 4, 6):
        epsilon = loss / buckets
        yield Candidate("LOLOHA", f"g = {buckets}", epsilon, buckets, hashed(buckets, epsilon))
        two = hashed(buckets, epsilon, epsilon / 2)
        yield Candidate("LOLOHA, two rounds", f"g = {buckets}", epsilon, buckets, two)


def outcome(each: Candidate, panels: list[Panel]) -> Row:
    """What comes out, averaged over keys and panels: the error of a week's share, and what people have spent."""
    squares, distinct = [], []
    for number, panel in enumerate(panels):
        truth = np.array([panel.frequency(week) for week in range(len(panel.held))])
        found, made = each.collect(panel, np.random.default_rng([7, number]))
        squares.append(((found - truth) ** 2).mean(axis=1))
        distinct.append(made)
    by_week = np.mean(squares, axis=0)
    return {
        "protocol": each.name,
        "setting": each.setting,
        "epsilon": each.epsilon,
        "spent": each.epsilon * float(np.mean(distinct)),
        "last": math.sqrt(by_week[-1]),
        "year": math.sqrt(by_week.mean()),
    }


def measure(cases: tuple[tuple[int, float, float, int], ...] = CASES, keys: int = 64) -> list[Row]:
    """For each case, the best setting of each protocol; and sets of four keys, which only hubbub takes."""
    rows: list[Row] = []
    for people, change, loss, runs in cases:
        print(f"  {people:,} people, {change:.0%} change, loss {loss:g} ...", file=sys.stderr, flush=True)
        crowd = {"keys": keys, "periods": WEEKS, "change": change, "drift": DRIFT}
        one, four = (
            [slow_panel(people, seed=run, entries=entries, **crowd) for run in range(runs)]  # type: ignore[arg-type]
            for entries in (1, 4)
        )
        tried = [(each, one) for each in candidates(loss, keys, people)]
        for cap in CAPS:
            name, collect = ours(loss / cap, cap, keys, 4, people)
            tried.append((Candidate(SETS, f"cap {cap}, {name}", loss / cap, cap, collect), four))
        best: dict[str, Row] = {}
        for each, panels in tried:
            row = {"people": people, "keys": keys, "change": change, "loss": loss, **outcome(each, panels)}
            if each.name not in best or row["last"] < best[each.name]["last"]:
                best[each.name] = row
        rows += best.values()
    return rows


def text(rows: list[Row]) -> str:
    """One table for each case."""
    parts = [
        prose(
            f"""One of {rows[0]["keys"]} keys a person, weekly for a year; the share of people who exchange their key in
            a week is given, and half of what is drawn at the end follows other shares than at the beginning. All rows
            of a table have one loss over all time: epsilon times the number of values of a person that may get noise
            of their own. Error: root mean square over the keys, of the last week and of all weeks. Spent: what people
            lost in fact, on average. Each protocol has its best setting, by the error of the last week. Errors are from
            one to three crowds, and good to 5 to 9%."""
        ),
        prose(
            """Without *two rounds*, RAPPOR and LOLOHA are shown at their best: the second round, fresh noise on every
            report, is left out. As published they have it (here: half of epsilon for one report), and then a changed
            report does not prove a changed value; with hubbub and dBitFlipPM it does. RAPPOR has no cap as published,
            so its loss is bounded by the number of keys only; rows *with our cap* are not in any paper. The other
            protocols take one key; for sets (last row) there is nothing to compare with."""
        ),
    ]
    heads = ["protocol", "setting", "epsilon of a value", "spent", "error, last week", "all weeks"]
    for case in dict.fromkeys((row["people"], row["change"], row["loss"]) for row in rows):
        people, change, loss = case
        parts.append(f"**{people:,} people, {change:.0%} change in a week, loss {loss:g} over all time.**")
        chosen = [row for row in rows if (row["people"], row["change"], row["loss"]) == case]
        chosen.sort(key=lambda row: (row["protocol"] == SETS, row["last"]))
        shown = [
            [
                row["protocol"],
                row["setting"],
                f"{row['epsilon']:.3g}",
                f"{row['spent']:.2f}",
                f"{row['last']:.4f}",
                f"{row['year']:.4f}",
            ]
            for row in chosen
        ]
        parts.append(table(heads, shown, words=2))
    return "\n\n".join(parts)


def headlines(rows: list[Row]) -> list[Headline]:
    """LOLOHA over hubbub, in every case."""
    found = []
    for case in dict.fromkeys((row["people"], row["change"], row["loss"]) for row in rows):
        last = {
            row["protocol"]: row["last"]
            for row in rows
            if (row["people"], row["change"], row["loss"]) == case
        }
        people, change, loss = case
        what = f"error after a year, {people:,} people, {change:.0%} change a week, loss {loss:g}: LOLOHA over hubbub"
        found.append(Headline(what, times(last["LOLOHA"] / last[OURS])))
    return found


SECTION = Section(
    "longitudinal",
    "A year of weeks, memoized",
    measure,
    text,
    quick={"cases": ((500, 0.02, 4.0, 1),), "keys": 8},
    headlines=headlines,
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="crowds that are averaged, of 20,000 people each")
    options = parser.parse_args()
    print(text(measure(tuple((*case, options.runs) for *case, _ in CASES[:4]))))  # type: ignore[misc]
