"""Hadamard response for records of one key (Acharya, Sun, Zhang 2019): no seed, one number.

Reports are columns of a Walsh matrix, 2^bits of them in equal blocks. A key has a block and a non-zero row of
it; it favours the half of the block where its row is +1. One block is best for small epsilon, about
(e^epsilon - 1) / 2 blocks for large. A record without a key favours a half chosen at random.

The one-bit form (the column public, the report the row's sign, flipped at random) is `sparse_sum` with
max_entries = 1: its bin is the sign of the one key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from hubbub.model.count_laws import Counts
from hubbub.model.guarantee import Guarantee
from hubbub.model.keys import Keys
from hubbub.model.mechanism import Goal, Held, Mechanism, Moments, Quantity
from hubbub.model.record import Entries
from hubbub.model.state import State
from hubbub.model.telltale import Telltale, outcome_telltales
from hubbub.primitives.arrays import Floats, Int64s, UInt64s
from hubbub.primitives.batch import per_record, run_kernel
from hubbub.primitives.coins import Coins
from hubbub.primitives.errors import Refused
from hubbub.primitives.kernel import Kernel, parity
from hubbub.primitives.samplers import UNIT, below, chance, favoured_weight
from hubbub.primitives.walsh import transform_rows
from hubbub.primitives.wire import Layout, WireField


class _Records(NamedTuple):
    """The block and the row of each entry; a record has at most one."""

    offsets: Int64s
    block: Int64s
    row: Int64s


class _Shape(NamedTuple):
    blocks: int
    size: int
    favoured: int
    other: int


@per_record
def _respond(tape: Any, i: int, records: Any, shape: Any, reports: Any) -> None:
    offsets, block, row = records
    blocks, size, favoured, other = shape
    half = size // 2
    weight = half * favoured
    if offsets[i + 1] == offsets[i]:  # all columns alike: no row is favoured, not even by chance
        reports[i, 0] = below(tape, blocks * size)
        return
    mine, line = block[offsets[i]], row[offsets[i]]
    if chance(tape, weight, weight + (blocks * size - half) * other):
        # A uniform column where the row is +1: any column, with one bit of the row flipped if need be.
        column = below(tape, size)
        if parity(line & column):
            column ^= line & -line
        reports[i, 0] = mine * size + column
        return
    place = below(tape, blocks * size - half)
    if place < half:
        column = below(tape, size)
        if not parity(line & column):
            column ^= line & -line
        reports[i, 0] = mine * size + column
    else:
        place -= half
        reports[i, 0] = place if place < mine * size else place + size


class HadamardResponse(Mechanism):
    """epsilon-LDP per record.

    Proof. Exactly half a block of columns has weight W, all others V, whatever the key, so the total is constant
    and two records' probabilities differ by at most W / V <= exp(epsilon). An empty record reports any column alike,
    which lies between the two.

    Unbiased: over its own block, the signed count of a key's row has mean s (W - V) / Omega per user who holds
    it (s half a block), and 0 for users of other rows (rows are orthogonal) and of other blocks.
    """

    name: ClassVar[str] = "hadamard"
    summary: ClassVar[str] = "one key per record: half a block of Walsh columns is favoured (Acharya et al.)"

    chosen: ClassVar[frozenset[str]] = frozenset({"bits", "blocks"})
    closed_only: ClassVar[bool] = True

    max_entries: Literal[1] = Field(default=1, description="one key per record")
    values: Literal["set"] = Field(default="set", description="sets of one key")
    bits: int = Field(default=16, ge=2, le=26, description="bits per report: room for about 2^bits keys")
    blocks: int = Field(
        default=0, ge=0, le=1 << 20, description="blocks of columns, a power of two (0: chosen)"
    )

    @model_validator(mode="after")
    def _complete(self) -> HadamardResponse:
        if not self.blocks:
            options = [1 << a for a in range(self.bits - 1)]
            self._fill(blocks=min(options, key=lambda b: (self._ratio - 1 + 2 * b) ** 2 / b))
        if self.blocks & (self.blocks - 1) or self.block_size < 2:
            raise ValueError("blocks must be a power of two and leave at least 2 columns each")
        if (1 << self.bits) * self.weights[0] >= 1 << 62:
            raise ValueError("epsilon and bits are together too large for exact 64-bit weights")
        return self

    @property
    def weights(self) -> tuple[int, int]:
        """(W, V): W / V is exp(epsilon) rounded down."""
        return favoured_weight(self.epsilon), UNIT

    @property
    def _ratio(self) -> float:
        return self.weights[0] / self.weights[1]

    @property
    def block_size(self) -> int:
        """Columns per block."""
        return (1 << self.bits) // self.blocks

    def guarantee(self) -> Guarantee:
        return Guarantee(self.epsilon, unit="record", model="local")

    def response_weights(self) -> tuple[int, int, int, int]:
        """(s, t, W, V): all weights lie in [V, W] and sum to s W + (t - s) V; see `hubbub.privacy.shuffle`."""
        return self.block_size // 2, 1 << self.bits, *self.weights

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return ("frequency",)

    @property
    def layout(self) -> Layout:
        return Layout((WireField("seed", 1), WireField("column", 1 << self.bits)))

    def miniature(self) -> Self:
        """The same with few columns."""
        blocks = min(self.blocks, 4)
        few = {"blocks": blocks, "bits": min(self.bits, blocks.bit_length() + 2)}
        return type(self)(**self.model_dump() | few)

    def check_keys(self, keys: Keys) -> None:
        super().check_keys(keys)
        if keys.places > self.blocks * (self.block_size - 1):
            raise Refused(
                f"{keys.places} keys do not fit into {self.bits} bits and {self.blocks} blocks; use more bits."
            )

    def _place(self, keys: Keys, ids: UInt64s) -> tuple[Int64s, Int64s]:
        """Block and non-zero row of each key."""
        self.check_keys(keys)
        places = ids.astype(np.int64)
        return places % self.blocks, 1 + places // self.blocks

    def kernel_and_shape(self) -> tuple[Kernel, NamedTuple]:
        """The kernel (tape, start, count, records, shape, reports), and what it needs of the parameters."""
        return _respond, _Shape(self.blocks, self.block_size, *self.weights)

    def randomize(self, keys: Keys, entries: Entries, seeds: UInt64s, coins: Coins) -> UInt64s:
        records = _Records(entries.offsets, *self._place(keys, entries.ids))
        reports = np.zeros((len(entries), 1), dtype=np.int64)
        kernel, shape = self.kernel_and_shape()
        run_kernel(kernel, coins, len(entries), records, shape, reports)
        return np.concatenate([seeds[:, None], reports.astype(np.uint64)], axis=1)

    def totals_shape(self, keys: Keys) -> tuple[int, ...]:
        return (1 << self.bits,)

    def absorb(self, state: State, keys: Keys, reports: UInt64s) -> None:
        state.totals += np.bincount(reports[:, 1].astype(np.int64), minlength=1 << self.bits)
        state.count += len(reports)

    def telltales(self, keys: Keys) -> tuple[Telltale, ...]:
        weights = self.response_weights()
        return outcome_telltales(
            weights, "columns", lambda reports: reports[:, 1], lambda state: state.totals
        )

    def scores(self, keys: Keys, reports: UInt64s, ids: UInt64s) -> Int64s:
        block, row = self._place(keys, ids)
        column = reports[:, 1].astype(np.int64)[:, None]
        inside = column // self.block_size == block
        sign = 1 - 2 * (np.bitwise_count(column % self.block_size & row).astype(np.int64) & 1)
        return np.asarray((inside * sign).sum(axis=1))

    def contributions(self, keys: Keys, reports: UInt64s, ids: UInt64s) -> Floats:
        each = [self.scores(keys, reports, ids[place : place + 1]) / self.gain for place in range(len(ids))]
        said = np.stack(each, axis=1)
        return np.stack([said, np.full_like(said, np.nan)])

    def effects(self) -> Floats:
        """One side or the other of the key's block."""
        return np.array([[1 / self.gain, np.nan], [-1 / self.gain, np.nan]])

    def keys_at_once(self, quantity: Quantity, keys: Keys) -> float:
        """All of one block: every row is +1 in its first column."""
        return -(-keys.count // self.blocks)

    def chosen_first(self, keys: Keys) -> UInt64s:
        """Block by block."""
        ids = keys.all_ids()
        return ids[np.argsort(self._place(keys, ids)[0], kind="stable")]

    def loudest_together(self, keys: Keys, way: Floats, count: int, chosen: bool) -> float:
        """Downwards, of the best choice for any column: its -1 first, then other blocks, where it says nothing."""
        if way[0] > 0:
            return super().loudest_together(keys, way, count, chosen)
        best, total = 0, keys.count
        for held in {-(-total // self.blocks), total // self.blocks}:  # keys of a block have its first rows
            sums = (
                transform_rows((np.arange(self.block_size)[None] <= held).astype(np.float64))[0].astype(
                    np.int64
                )
                - 1
            )
            against = (held - sums) // 2
            forced = np.maximum(min(count, total) - (total - held) - against, 0)
            best = max(best, int((np.minimum(count, against) - forced).max()))
        return best * abs(float(way[0])) / self.gain

    def louder(self, keys: Keys, reports: UInt64s, ids: UInt64s, weights: Floats) -> UInt64s:
        """The columns where the rows of these keys agree best, in turn."""
        laid = np.zeros((self.blocks, self.block_size), dtype=np.float64)
        np.add.at(laid, self._place(keys, ids), np.nan_to_num(weights[0]))
        loud = transform_rows(laid).reshape(-1)
        best = np.flatnonzero(loud >= loud.max() - 1e-9 * np.abs(loud).max())
        columns = best[reports[:, 1].astype(np.int64) % len(best)]
        return np.stack([reports[:, 0], columns.astype(np.uint64)], axis=1)

    @property
    def gain(self) -> float:
        """kappa = s (W - V) / Omega."""
        return (self._ratio - 1) / (self._ratio - 1 + 2 * self.blocks)

    def moments(self, state: State, keys: Keys, ids: UInt64s) -> Moments:
        n = max(state.count, 1)
        counts = state.totals.reshape(self.blocks, self.block_size)
        block, row = self._place(keys, ids)
        inside, alone = counts.sum(axis=1)[block], block + self.blocks >= keys.count
        votes = transform_rows(counts)
        # Empty records answer in all blocks alike. As many people have one as have no key.
        empty = np.clip(1 - votes[self._place(keys, keys.all_ids())].sum() / (n * self.gain), 0, 1)
        found = Counts(
            n,
            signed=votes[block, row],
            signed_gain=self.gain,
            signed_noise=(float(1 - self.gain + self.gain * empty) / self.blocks, self.gain),
            around=np.where(alone, 0, inside),  # nobody else has a key of a block that has only this one
            others=1 / self.blocks,
        )
        share = np.clip(found.frequency, 0, 1)
        seen = np.maximum(inside / n, found.signed_noise[0])  # no block is silent for ever
        return Moments(found.frequency, (seen - self.gain**2 * share) / (n * self.gain**2), counts=found)

    def variance_for(self, quantity: Quantity, users: int, held: Held) -> float:
        """With the other users spread evenly over the blocks; the error bars use each block's own share.

        Who has the key answers within its block with probability gain + (1 - gain) / blocks, the others in the mean
        with 1 / blocks.
        """
        seen = 1 / self.blocks + held.frequency * self.gain * (1 - 1 / self.blocks)
        return (seen - self.gain**2 * held.frequency) / (users * self.gain**2)

    @classmethod
    def candidates(cls, goal: Goal) -> Iterator[HadamardResponse]:
        if (
            goal.unit == "record"
            and goal.values == "set"
            and goal.max_entries == 1
            and goal.quantity == "frequency"
        ):
            yield cls(epsilon=goal.epsilon, bits=min(26, max(16, (goal.keys * 2).bit_length())))
