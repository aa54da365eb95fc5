"""Compressive privatization for records of one key (Xiong et al. 2022): one bit about one row of a sensing matrix.

The matrix A has `rows` rows and a column of +-1 per key: A[row, key] is the key's random sign under the row (see
`hubbub.model.hashing`; family walsh: rows of a Walsh matrix, prf: Rademacher, as published). It is never stored.
A few hundred rows are far fewer than there are keys; when few keys are popular they are enough, and
`hubbub.server.recovery` finds those keys. The state is as small as the rows are few, whatever the number of keys.

The paper's three schemes are one:

- one bit (Algorithm 1): the row is public, the report is the key's sign in it, by randomized response. The paper deals
  rows to users in turn; here a device draws its row from the public seed and sends it along.
- symmetric (Algorithm 2 with the response matrix [A; -A] of Section 3.3): the report is one of 2 * rows columns, the
  half where the key has +1 being favoured. That is the law of (drawn row, noisy sign) above: the same reports.
- recursive (Algorithm 3): keys are permuted into blocks (the low bits of their code), and the report is block and sign,
  by randomized response among 2 * blocks. One block is the one-bit scheme. The Hadamard matrix over blocks that the
  paper multiplies with is orthogonal up to scale, so least squares and correlations are the same without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from hubbub.mechanisms.shared.several_keys import Landing, best_together
from hubbub.model.count_laws import Counts
from hubbub.model.guarantee import Guarantee
from hubbub.model.hashing import Family, hash_entries
from hubbub.model.keys import Keys, bits_for
from hubbub.model.measurements import Measurements, SignMatrix
from hubbub.model.mechanism import Goal, Held, Mechanism, Moments, Quantity, Refinement
from hubbub.model.record import Entries
from hubbub.model.state import State
from hubbub.model.telltale import Telltale, drawn_telltale, outcome_bounds, outcome_telltales
from hubbub.primitives.arrays import Floats, Int64s, UInt64s
from hubbub.primitives.batch import per_record, run_kernel
from hubbub.primitives.coins import Coins
from hubbub.primitives.errors import Refused
from hubbub.primitives.samplers import UNIT, favoured_weight, randomized_response
from hubbub.primitives.wire import Layout, WireField


class _Records(NamedTuple):
    """The true outcome of each entry; a record has at most one."""

    offsets: Int64s
    truth: Int64s


class _Shape(NamedTuple):
    outcomes: int
    favoured: int
    other: int


@per_record
def _respond(tape: Any, i: int, records: Any, shape: Any, reports: Any) -> None:
    offsets, truth = records
    own = truth[offsets[i]] if offsets[i + 1] > offsets[i] else -1
    reports[i, 0] = randomized_response(tape, own, shape.outcomes, shape.favoured, shape.other)


class Compressive(Mechanism):
    """epsilon-LDP per record, for any signs and blocks.

    Proof. Fix the row, which is drawn without looking at the record. The key's outcome (block and sign) has probability
    W / T and each of the 2 * blocks - 1 others V / T, where T = W + (2 blocks - 1) V; without a key all have 1 / (2
    blocks), which lies between. So two records' probabilities differ by at most W / V <= exp(epsilon).

    Unbiased, before recovery: c = T / (W - V) times the reported side (0 if the report names another block) has mean
    A[row, key] for whoever holds a key of the block, so c * side * A[row, key], averaged over users, has mean
    frequency + crosstalk: the sum over other keys of the block of their frequency times the rows' mean product of both
    keys' signs, which is 0 on average over the public signs and has variance 1 / rows.
    """

    name: ClassVar[str] = "compressive"
    summary: ClassVar[str] = (
        "one key per record, few of them popular: one bit about a random row (Xiong et al.)"
    )

    closed_only: ClassVar[bool] = True
    refinement: ClassVar[Refinement] = "sparse"
    chosen: ClassVar[frozenset[str]] = frozenset({"blocks"})

    max_entries: Literal[1] = Field(default=1, description="one key per record")
    values: Literal["set"] = Field(default="set", description="sets of one key")
    family: Family = Field(
        default="walsh", description="sensing matrix: walsh (fast recovery) or prf (Rademacher, as published)"
    )
    rows: int = Field(default=512, ge=1, le=1 << 20, description="rows of the sensing matrix: measurements")
    blocks: int = Field(
        default=0, ge=0, le=1 << 20, description="blocks of keys, a power of two (1: one bit; 0: chosen)"
    )
    sparsity: int = Field(
        default=0, ge=0, le=1 << 20, description="keys to recover, as published (0: told by the noise level)"
    )

    @model_validator(mode="after")
    def _complete(self) -> Compressive:
        if not self.blocks:
            options = [1 << a for a in range(self._most_blocks.bit_length())]
            self._fill(blocks=min(options, key=self._noise))
        if self.blocks & (self.blocks - 1):
            raise ValueError(f"blocks must be a power of two, not {self.blocks}")
        if self.sparsity > self.rows:
            raise ValueError(f"{self.sparsity} keys cannot be told apart by {self.rows} rows; use more rows")
        return self

    @property
    def _most_blocks(self) -> int:
        """The largest power of two that is at most exp(epsilon), and at most the sparsity where that is given."""
        reach = min(self.weights[0] // self.weights[1], self.sparsity or 1 << 20, 1 << 20)
        return 1 << (reach.bit_length() - 1)

    @property
    def parts(self) -> int:
        """Blocks in use: those asked for, within what epsilon and sparsity allow."""
        return min(self.blocks, self._most_blocks)

    @property
    def remarks(self) -> tuple[str, ...]:
        if self.blocks == self.parts:
            return ()
        return (
            f"The recursive scheme allows at most min(exp(epsilon), sparsity) blocks, a power of two: {self.parts} "
            f"{'is' if self.parts == 1 else 'are'} used instead of {self.blocks}.",
        )

    @property
    def weights(self) -> tuple[int, int]:
        """(W, V): W / V is exp(epsilon) rounded down."""
        return favoured_weight(self.epsilon), UNIT

    def response_weights(self) -> tuple[int, int, int, int]:
        """(s, t, W, V): all weights lie in [V, W] and sum to s W + (t - s) V; see `hubbub.privacy.shuffle`."""
        return 1, 2 * self.parts, *self.weights

    def guarantee(self) -> Guarantee:
        return Guarantee(self.epsilon, unit="record", model="local")

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return ("frequency",)

    def miniature(self) -> Self:
        """The same with few blocks and rows."""
        few = {"blocks": min(self.parts, 4), "rows": min(self.rows, max(64, self.sparsity))}
        return type(self)(**self.model_dump() | few)

    # On the device

    @property
    def layout(self) -> Layout:
        return Layout((WireField("row", self.rows), WireField("outcome", 2 * self.parts)))

    def check_keys(self, keys: Keys) -> None:
        super().check_keys(keys)
        if keys.cohorts > 1:
            raise Refused("Compressive privatization uses one code per key; make a task with cohorts = 1.")
        if self.family == "walsh" and self.rows * self.parts > 1 << keys.bits:
            raise Refused(
                f"{self.rows} rows times {self.parts} blocks are more than the {1 << keys.bits} Walsh rows of codes of "
                f"{keys.bits} bits; use fewer rows or more bits."
            )

    def block_of(self, keys: Keys, ids: UInt64s) -> Int64s:
        """The block of each key: the low bits of its code, which is a public permutation."""
        if self.parts == 1:
            return np.zeros(len(ids), dtype=np.int64)
        return (keys.codes(ids, 0) & np.uint64(self.parts - 1)).astype(np.int64)

    def reported_seeds(self, seeds: UInt64s) -> UInt64s:
        """Rows. Where they are no power of two, the first of them are drawn twice as often; the estimates know."""
        return np.asarray(seeds % np.uint64(self.rows))

    def randomize(self, keys: Keys, entries: Entries, seeds: UInt64s, coins: Coins) -> UInt64s:
        self.check_keys(keys)
        rows = self.reported_seeds(seeds)
        _, sign = hash_entries(self.family, keys, rows, entries.ids, entries.offsets, 1)
        truth = 2 * self.block_of(keys, entries.ids) + (sign > 0)
        reports = np.zeros((len(entries), 1), dtype=np.int64)
        shape = _Shape(2 * self.parts, *self.weights)
        run_kernel(_respond, coins, len(entries), _Records(entries.offsets, truth), shape, reports)
        return np.concatenate([rows[:, None], reports.astype(np.uint64)], axis=1)

    # On the server

    def totals_shape(self, keys: Keys) -> tuple[int, ...]:
        """Counts of outcomes per row."""
        self.check_keys(keys)
        return self.rows, 2 * self.parts

    def absorb(self, state: State, keys: Keys, reports: UInt64s) -> None:
        cells = (reports[:, 0] * np.uint64(2 * self.parts) + reports[:, 1]).astype(np.int64)
        state.totals += np.bincount(cells, minlength=state.totals.size).reshape(state.totals.shape)
        state.count += len(reports)

    @property
    def _row_law(self) -> Floats:
        """Rows are drawn by the seed's bits: where they are no power of two, the first ones twice as often."""
        drawn = 1 << self.layout.fields[0].bits
        return np.bincount(np.arange(drawn) % self.rows, minlength=self.rows) / drawn

    def likeliest(self) -> float:
        return float(self._row_law.max()) * outcome_bounds(self.response_weights(), 1)[1]

    def telltales(self, keys: Keys) -> tuple[Telltale, ...]:
        return (
            drawn_telltale("rows", "rows", self._row_law, 0, lambda state: state.totals.sum(axis=1)),
            *outcome_telltales(
                self.response_weights(),
                "outcomes",
                lambda reports: reports[:, 1],
                lambda state: state.totals.sum(axis=0),
            ),
        )

    def scores(self, keys: Keys, reports: UInt64s, ids: UInt64s) -> Int64s:
        matrix = self.matrix(keys, ids)
        row, outcome = reports.astype(np.int64).T
        inside = matrix.block == (outcome // 2)[:, None]
        return np.asarray((inside * matrix.signs[row] * (2 * (outcome % 2) - 1)[:, None]).sum(axis=1))

    def contributions(self, keys: Keys, reports: UInt64s, ids: UInt64s) -> Floats:
        row, outcome = reports.astype(np.int64).T
        loud = np.zeros((2, len(reports), len(ids)))
        loud[1] = np.nan
        for place, inside in enumerate(self.block_of(keys, ids)):
            signs = self.matrix(keys, ids[place : place + 1]).signs[row, 0]
            loud[0, :, place] = self.gain * np.where(
                outcome // 2 == inside, signs * (2 * (outcome % 2) - 1), 0
            )
        return loud

    def effects(self) -> Floats:
        """One side or the other of the key's block."""
        return np.array([[self.gain, np.nan], [-self.gain, np.nan]])

    def keys_at_once(self, quantity: Quantity, keys: Keys) -> float:
        return self._landing(self.rows).at_once

    def loudest_together(self, keys: Keys, way: Floats, count: int, chosen: bool) -> float:
        return abs(float(way[0])) * best_together([self._landing(self.rows if chosen else 1)], count)

    def _landing(self, rows: int) -> Landing:
        """Of keys in one block: each has the right sign in half of the rows; a report tells one side or the other."""
        return Landing((self.gain, -self.gain), (0.5, 0.5), 1 + math.log2(rows))

    def louder(self, keys: Keys, reports: UInt64s, ids: UInt64s, weights: Floats) -> UInt64s:
        """Of the keys of one block, the side that most weight is on in the report's row."""
        row, block = reports[:, 0].astype(np.int64), self.block_of(keys, ids)
        wanted = np.zeros((len(reports), self.parts))
        for place, weight in enumerate(np.nan_to_num(weights[0])):
            wanted[:, block[place]] += weight * self.matrix(keys, ids[place : place + 1]).signs[row, 0]
        best = np.argmax(np.abs(wanted), axis=1)
        side = wanted[np.arange(len(reports)), best] > 0
        return np.stack([reports[:, 0], (2 * best + side).astype(np.uint64)], axis=1)

    def matrix(self, keys: Keys, ids: UInt64s) -> SignMatrix:
        """The columns of the sensing matrix for these keys."""
        return SignMatrix(self.family, keys, ids, self.block_of(keys, ids), self.rows, self.parts)

    @property
    def gain(self) -> float:
        """c = T / (W - V): what a report is multiplied with to undo the randomized response."""
        favoured, other = self.weights
        return (favoured + (2 * self.parts - 1) * other) / (favoured - other)

    def measurements(self, state: State, keys: Keys) -> Measurements:
        """A p for all keys, as far as it has been measured: what sparse recovery starts from."""
        sides, seen, named = self._counts(state)
        reports = np.maximum(seen, 1)[:, None]
        noise = np.maximum(self.gain**2 * named - self._squares(state), self.gain**2 * self._idle)
        precision = np.where(seen[:, None] > 0, reports / noise, 0.0)
        matrix = self.matrix(keys, keys.all_ids())
        return Measurements(matrix, self.gain * sides / reports, precision, self.sparsity)

    def _counts(self, state: State) -> tuple[Floats, Floats, Floats]:
        """Sum of sides [rows, blocks], reports per row, and the share of reports that name each block."""
        counts = state.totals.reshape(self.rows, self.parts, 2).astype(np.float64)
        return (
            counts[:, :, 1] - counts[:, :, 0],
            counts.sum(axis=(1, 2)),
            counts.sum(axis=(0, 2)) / max(state.count, 1),
        )

    def _squares(self, state: State) -> Floats:
        """The sum of squared frequencies in each block.

        The mean over reports of the row's squared measurement, less the part of it that is noise.
        """
        sides, seen, named = self._counts(state)
        n, used = max(state.count, 1), int((seen > 0).sum())
        if used >= n:
            return np.full(self.parts, 1 / self.parts)
        power = (self.gain**2 * sides**2 / np.maximum(seen, 1)[:, None]).sum(axis=0) / n
        squares: Floats = np.clip((power - used * self.gain**2 * named / n) / (1 - used / n), 0.0, 1.0)
        return squares

    def moments(self, state: State, keys: Keys, ids: UInt64s) -> Moments:
        """The linear estimates, before any recovery."""
        n, matrix = max(state.count, 1), self.matrix(keys, ids)
        sides, seen, named = self._counts(state)
        votes = matrix.adjoint(sides)
        frequency = self.gain * votes / n
        share = np.clip(frequency, 0, 1)
        sharing = float((seen * (seen - 1)).sum()) / n**2
        crosstalk = np.maximum(self._squares(state)[matrix.block] - share**2, 0) * sharing
        inside = np.maximum(named, self._idle)[matrix.block]  # no block is silent for ever
        noise = np.maximum(self.gain**2 * inside - share, share * (self.gain**2 * self._naming - 1))
        every = self.matrix(keys, keys.all_ids())
        alone = np.bincount(every.block, minlength=self.parts)[matrix.block] == 1
        # Empty records name all blocks alike. As many people have one as have no key.
        empty = float(np.clip(1 - self.gain * every.adjoint(sides).sum() / n, 0, 1)) if alone.any() else 0.0
        counts = Counts(
            n,
            signed=np.rint(votes).astype(np.int64),
            signed_gain=1 / self.gain,
            signed_noise=(
                self._idle + empty * (1 / self.parts - self._idle),
                self._naming - self._idle,
            ),
            around=np.where(alone, 0, np.rint(n * named)[matrix.block]).astype(np.int64),
            wider=np.sqrt(1 + crosstalk * n / np.maximum(noise, 1e-300)),
            others=1 / self.parts,
        )
        return Moments(frequency, noise / n + crosstalk, counts=counts)

    @property
    def _idle(self) -> float:
        """The probability that a record without a key of a block, but with another, names it."""
        favoured, other = self.weights
        return 2 * other / (self.gain * (favoured - other))

    @property
    def _naming(self) -> float:
        """The probability that who holds a key names its block."""
        favoured, other = self.weights
        return (favoured + other) / (self.gain * (favoured - other))

    # For planning

    def _noise(self, blocks: int) -> float:
        """gain^2 / blocks: what the number of blocks does to the variance."""
        ratio = self.weights[0] / self.weights[1]
        return ((ratio + 2 * blocks - 1) / (ratio - 1)) ** 2 / blocks

    def variance_for(self, quantity: Quantity, users: int, held: Held) -> float:
        """Of the linear estimate, with users spread evenly over the blocks.

        The sum of squared frequencies, which makes the crosstalk, is taken as a quarter; the error bars use what was
        measured, and recovery removes most of it.
        """
        drawn = 1 << (self.rows - 1).bit_length()
        sharing = (self.rows + 3 * (drawn - self.rows)) / drawn**2
        others = self._noise(self.parts) * (1 - held.frequency)
        return (
            others + held.frequency * (self.gain**2 * self._naming - 1)
        ) / users + sharing / 4 / self.parts

    @classmethod
    def candidates(cls, goal: Goal) -> Iterator[Compressive]:
        """One bit, and the recursive scheme with as many blocks as it allows.

        The planner compares unbiased estimates of every key, so these have rows for that: the fewest with which
        crosstalk adds at most 3% to the variance, as far as the codes go. Recovery does with far fewer.
        """
        if (goal.unit, goal.values, goal.max_entries, goal.quantity) != ("record", "set", 1, "frequency"):
            return
        most = min(1 << math.floor(goal.epsilon / math.log(2)), 1 << 10)
        for blocks in sorted({1, most}):
            made = cls(epsilon=goal.epsilon, family=goal.family, blocks=blocks)
            wanted = goal.users / (4 * made.parts * 0.03 * made._noise(made.parts))
            room = 1 << bits_for(goal.keys)
            rows = min(1 << math.ceil(math.log2(max(wanted, 1))), room // made.parts, 1 << 20)
            yield cls(epsilon=goal.epsilon, family=goal.family, blocks=blocks, rows=rows)
