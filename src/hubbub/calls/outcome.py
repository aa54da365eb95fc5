"""What would have been learned: a collection from a table, simulated, beside the truth. `hubbub.simulate`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hubbub.calls.run import Watch, unwatched
from hubbub.model.mechanism import Quantity
from hubbub.model.record import Summary
from hubbub.plan.advice import advised
from hubbub.primitives.arrays import Bools, Floats
from hubbub.primitives.coins import InsecureCoins
from hubbub.primitives.markup import paragraph, table, whisker, whole
from hubbub.protocol.task import Task
from hubbub.server.estimates import Estimate, estimate
from hubbub.server.pictures import decimals_for
from hubbub.server.quantities import offered_quantity
from hubbub.server.truncation import truncation_of_table
from hubbub.simulation import rehearsal
from hubbub.tables.records import TableLike, encode_table, read_table


@dataclass(frozen=True, repr=False)
class Outcome:
    """Simulated estimates with the truth: of whole records, and of records as they were reported (sampled down).

    Where lengths are counted, that is what is reported on average: intervals count that entries are drawn. The truth of
    a key that nobody has is 0, of its conditional mean NaN. Nothing here is private.
    """

    estimate: Estimate
    truth: Floats
    truth_sampled_down: Floats
    summary: Summary
    #: Whether estimates are corrected for what was dropped.
    corrected: bool = False

    def __len__(self) -> int:
        return len(self.estimate)

    @property
    def known(self) -> Bools:
        """Where there is a truth."""
        return np.isfinite(self.truth)

    @property
    def inside(self) -> Bools:
        """Which intervals hold the truth."""
        return self._holds(self.truth)

    @property
    def coverage(self) -> float:
        """The share of intervals that hold the truth."""
        return float(self.inside[self.known].mean())

    @property
    def coverage_sampled_down(self) -> float:
        """The share of intervals that hold the truth of records after sampling down."""
        known = self.known & np.isfinite(self.truth_sampled_down)
        return float(self._holds(self.truth_sampled_down)[known].mean())

    def _holds(self, truth: Floats) -> Bools:
        return np.asarray((self.estimate.low <= truth) & (truth <= self.estimate.high))

    @property
    def rms(self) -> float | None:
        """Root mean square error over the keys of which something is known."""
        errors = (self.estimate.value - self.truth)[self.known & np.isfinite(self.estimate.error)]
        return float(np.sqrt(np.mean(errors**2))) if len(errors) else None

    def rows(self, count: int | None = None) -> list[dict[str, Any]]:
        """One plain dictionary per key, the largest truth first: an estimate, the truth, whether it is inside."""
        best = np.argsort(-np.abs(np.nan_to_num(self.truth)), kind="stable")[:count]
        found = zip(self.estimate.take(best).rows(), self.truth[best], self.inside[best], strict=True)
        return [
            {**row, "truth": float(true) if np.isfinite(true) else None, "inside": bool(inside)}
            for row, true, inside in found
        ]

    def closing(self) -> list[str]:
        """What is said below a table of rows."""
        rms, share = self.rms, 100 * self.coverage_sampled_down
        said = [
            f"{100 * self.coverage:.1f}% of {int(self.known.sum()):,} intervals hold the truth "
            f"(meant: {100 * self.estimate.level:g}%); "
            + (f"root mean square error {rms:.4g}." if rms is not None else "nothing is known about any key.")
        ]
        if self.summary.dropped_entries and not self.corrected:
            said.append(
                f"That is the truth of whole records; {share:.1f}% hold the truth of records after sampling down."
            )
        return said

    def __str__(self) -> str:
        rows = self.rows(20)
        width = max([len(row["key"]) for row in rows] + [3])
        lines = [f"{self.estimate.quantity}: truth against estimate (simulated)"]
        for row in rows:
            true = "        -" if row["truth"] is None else f"{row['truth']: .6f}"
            lines.append(
                f"  {row['key']:<{width}}  {true}  {row['value']: .6f}  [{row['low']: .6f}, {row['high']: .6f}]"
                f"{'' if row['inside'] else '  miss'}"
            )
        return "\n".join([*lines, *self.closing(), self.estimate.guarantee.words()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For notebooks."""
        digits = decimals_for(self.estimate.error)
        rows = self.rows(20)
        span = (
            min([0.0, *(row["low"] for row in rows)]),
            max([0.0, *(row["high"] for row in rows)]),
        )
        lines = [
            (
                row["key"],
                whisker(row["low"], row["value"], row["high"], span, row["flagged"]),
                "-" if row["truth"] is None else f"{row['truth']:.{digits}f}",
                f"{row['value']:.{digits}f}",
                f"{row['low']:.{digits}f} to {row['high']:.{digits}f}",
                "" if row["inside"] else "miss",
            )
            for row in rows
        ]
        head = ("key", "", "truth", "estimate", f"{100 * self.estimate.level:g}% interval", "")
        said = [f"{self.estimate.quantity}: truth against estimate (simulated)", *self.estimate.warnings]
        closing = [*self.closing(), self.estimate.guarantee.words()]
        found = table(head, lines, [row["flagged"] for row in rows])
        return whole(*map(paragraph, said), found, *map(paragraph, closing))


def simulate(
    table: TableLike,
    task: Task,
    user: str | None = None,
    key: str | None = None,
    value: str | None = None,
    *,
    quantity: Quantity | None = None,
    level: float = 0.95,
    correct: bool = False,
    seed: int = 1,
    watch: Watch = unwatched,
) -> Outcome:
    """What a collection from people with these records would have shown, beside the truth; as `hubbub simulate`.

        outcome = hubbub.simulate(frame, task, user="user", key="page", seed=1)
        outcome.coverage, outcome.rms

    Tables are those of `run`. Coins are seeded, so that it can be repeated: nothing that comes out of this is private.
    """
    asked = offered_quantity(task, quantity)
    rows = read_table(table, user, key, value)
    entries, tidied = encode_table(task, rows)
    reported, cut = entries, Summary()
    if not task.keys.count_lengths:
        # Entries are drawn beforehand, as devices do it: the truth of those that are left is then known.
        reported, cut = task.shortened(entries, InsecureCoins(seed + 2))
    with watch("simulating", 2 * len(entries), task) as advance:
        made = rehearsal.simulate(task, reported, seed, lambda _, done: advance(done))
    names = None if task.keys.kind == "closed" else rows.keys
    lengths = np.diff(entries.offsets)
    lost = truncation_of_table(task, lengths)
    found = estimate(task, made.state, names, asked, level, truncation=lost, correct=correct)
    found = advised(task, found, dict(Counter(lengths.tolist())))
    summary = tidied + cut + made.summary
    found = replace(found, guarantee=replace(found.guarantee, noise="simulated"), summary=summary)
    ids = task.keys.ids_of(found.keys)
    truth = rehearsal.true_values(task, entries, found.quantity, ids)
    sampled = rehearsal.true_values(task, reported, found.quantity, ids, sampled_down=True)
    return Outcome(found, truth, sampled, summary, correct)
