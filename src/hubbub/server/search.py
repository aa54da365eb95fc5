"""The search for keys that nobody has listed: level by level, candidates are what was kept times what can follow.

Evidence. Take a candidate that nobody holds. Its codes under the maps of a stage are values of a public hash function
which nothing else depends on: no report was made with them. So, given all reports, they are uniform over the codes of
each map, independent between maps and between such candidates. Let p_j be the share of all codes of map j that got at
least as many votes as the candidate's code did. Then P(p_j <= u) <= u, whatever the reports are: noise, popular keys
that the candidate collides with, and forged reports are all in the share itself. With z_j = -Phi^-1(p_j), the sum of
the z_j over M maps, divided by sqrt(M), is at most standard normal, and its tail p is a p-value of the candidate. A
collision with a popular key makes one z_j large, up to about 5, but not the others: what is found stands out in all.

False finds. The candidates of the last level are determined by the reports of the levels before it. Among them, those
that nobody holds have independent p-values, which are also independent of the other candidates' votes. That is the
setting of Benjamini and Hochberg (1995): if the r candidates with the smallest p-values are taken, r as large as
p_(r) <= q r / N allows, the expected share of false ones among them is at most q (times the share of false ones among
all N candidates). A false find is a key that nobody who reported holds. The one assumption is the hash function's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from hubbub.mechanisms.shared.hashed import Hashed
from hubbub.model.state import State
from hubbub.model.tree import Tree, map_code
from hubbub.primitives.arrays import Bools, Floats, Int64s, UInt64s
from hubbub.primitives.errors import Refused
from hubbub.primitives.kernel import kernel, use_compiled
from hubbub.protocol.task import Task

#: Candidates of one level beyond which a search is refused, those that are looked at anyway, and at a time.
MOST_CANDIDATES, ROOM, _CHUNK = 10**8, 1 << 22, 1 << 20
#: The expected share of false ones among prefixes that are kept even where there is no room for them.
_FALSE_PREFIXES = 0.5
#: p-values that are not worth a look where there are many candidates, and how many those are.
_RARE, _FEW = 1e-3, 100_000
#: The least evidence: the tail that p = 1 stands for.
_NOTHING = -9.0


@dataclass(frozen=True)
class Look:
    """What happened at one level: symbols of its prefixes, reports made for it, candidates, and what was kept."""

    symbols: int
    reports: int
    candidates: int
    kept: int


@dataclass(frozen=True)
class Limits:
    """What a search may find: keys of a list, keys outside a list, keys that begin in a certain way."""

    allow: UInt64s | None = None
    deny: UInt64s | None = None
    #: A prefix as a number, and its symbols.
    within: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Found:
    """Ids of keys, their p-values, and the levels that led to them."""

    ids: UInt64s
    p: Floats
    looks: tuple[Look, ...]


def prefix_of(tree: Tree, text: str) -> tuple[int, int]:
    """A beginning of keys as a number and its symbols; one that no key can have is refused."""
    number = tree.id_of(text)
    if number < 0 or tree.named(number)[1]:
        raise Refused(
            f"No key of this task begins with {text!r}: it is too long, or has symbols from elsewhere."
        )
    length = tree.longest
    while length and number % tree.base == 0:
        number, length = number // tree.base, length - 1
    return number, length


def search(
    task: Task,
    state: State,
    false_finds: float,
    limits: Limits,
    progress: Callable[[int], None] = lambda done: None,
) -> Found:
    """The keys that stand out at the last level, with an expected share of false ones of at most `false_finds`."""
    tree = tree_of(task)
    if limits.allow is not None:
        return _listed(task, state, false_finds, limits)
    for level, symbols in enumerate(tree.levels, start=1):
        if tree.base**symbols > MOST_CANDIDATES:
            raise Refused(
                f"Level {level} adds {symbols} symbols at once, which is more than 10^8 candidates: make a task with "
                "more levels of fewer symbols."
            )
    looks: list[Look] = []
    kept, last = np.zeros(0, dtype=np.uint64), len(tree.levels) - 1
    p = np.zeros(0)
    for level in range(last + 1):
        lots = _Lots(tree, level, kept, looks[-1].symbols if looks else 0, limits)
        evidence = Evidence(task, state, level)
        share = false_finds if level == last else _FALSE_PREFIXES
        numbers, p = lots.standing_out(evidence, share, progress)
        count = step_up(p, share, lots.total)
        if level < last:
            count = max(count, min(len(p), prefixes_with_room(tree, level + 1)))
        kept, p = numbers[:count], p[:count]
        looks.append(Look(tree.lengths[level], evidence.reports, lots.total, len(kept)))
    return Found(kept, p, tuple(looks))


def _listed(task: Task, state: State, false_finds: float, limits: Limits) -> Found:
    """The same for a list of keys: all of them are candidates of the last level, which needs no others before it."""
    tree = tree_of(task)
    assert limits.allow is not None
    numbers = np.unique(limits.allow)
    numbers = numbers[~np.isin(numbers, limits.deny)] if limits.deny is not None else numbers
    within, length = limits.within
    numbers = numbers[numbers // np.uint64(tree.base ** (tree.longest - length)) == np.uint64(within)]
    evidence = Evidence(task, state, len(tree.levels) - 1)
    strength = evidence.of(numbers)
    order = np.argsort(-strength, kind="stable")
    p = tails(strength[order])
    count = step_up(p, false_finds, len(numbers))
    look = Look(tree.longest, evidence.reports, len(numbers), count)
    return Found(numbers[order][:count], p[:count], (look,))


def tree_of(task: Task) -> Tree:
    """How the task's keys are cut; keys that cannot be discovered are refused."""
    if task.keys.tree is None:
        raise Refused(
            "Only keys of the kind tree can be discovered, and this task has others: hubbub plan --discover writes a "
            "task that can."
        )
    return task.keys.tree


def hashed(task: Task) -> Hashed:
    """The task's mechanism, which for keys in a tree votes for hash buckets."""
    assert isinstance(task.mechanism, Hashed)
    return task.mechanism


class Evidence:
    """How far every code of every map of a stage stands out from the others of its map."""

    def __init__(self, task: Task, state: State, stage: int) -> None:
        self._tree, self._keys = tree_of(task), task.keys
        self._cohorts = list(self._tree.cohorts_of(stage))
        self.reports = sum(hashed(task).heard_in(state, each) for each in self._cohorts)
        self._scores = [_scores(hashed(task).code_sums(state, each)) for each in self._cohorts]

    def of(self, prefixes: UInt64s) -> Floats:
        """What speaks for each prefix; at most standard normal where nobody has it."""
        total = np.zeros(len(prefixes), dtype=np.float64)
        codes = np.uint64((1 << self._keys.bits) - 1)
        words = (part[self._cohorts] for part in self._tree.map_words(self._keys.salt_words[0]))
        for first, second, scores in zip(*words, self._scores, strict=True):
            if use_compiled(len(prefixes)):
                _add_scores.compiled()(prefixes, first, second, codes, scores, total)
            else:
                total += scores[map_code(prefixes, first, second, codes)]
        return total / math.sqrt(len(self._scores))


@kernel
def _add_scores(prefixes: Any, first: Any, second: Any, codes: Any, scores: Any, total: Any) -> None:
    for i in range(len(prefixes)):
        total[i] += scores[np.int64(map_code(prefixes[i], first, second, codes))]


def _scores(votes: Int64s) -> Floats:
    """-Phi^-1 of the share of codes with at least as many votes, for every code; the code 0 is nobody's."""
    values, where, counts = np.unique(votes[1:], return_inverse=True, return_counts=True)
    least = np.cumsum(counts[::-1])[::-1] / (len(votes) - 1)
    quantile = NormalDist().inv_cdf
    table = np.array([-quantile(share) if share < 1 else _NOTHING for share in least.tolist()])
    assert len(table) == len(values)
    return np.concatenate([[_NOTHING], table[where]])


def prefixes_with_room(tree: Tree, level: int) -> int:
    """How many prefixes are followed up at a level whether they stand out or not."""
    return max(1, ROOM // tree.piece_counts[level])


def tails(strength: Floats) -> Floats:
    """P(N >= strength) for a standard normal N."""
    return np.array([0.5 * math.erfc(each / math.sqrt(2)) for each in strength.tolist()])


def step_up(p: Floats, share: float, candidates: int) -> int:
    """How many of the smallest p-values (ascending) Benjamini and Hochberg take."""
    below = np.flatnonzero(p * candidates <= share * np.arange(1, len(p) + 1))
    return int(below[-1]) + 1 if len(below) else 0


class _Lots:
    """The candidates of a level, some at a time."""

    def __init__(self, tree: Tree, level: int, kept: UInt64s, length: int, limits: Limits) -> None:
        self._tree, self._level, self._limits = tree, level, limits
        grow = tree.levels[level]
        self._grow = np.uint64(tree.base**grow)
        self._pieces = [piece.astype(np.uint64) for piece in tree.pieces(level)]
        if level == 0:
            kept = np.arange(max(1, len(tree.starts)), dtype=np.uint64)
            lacking = np.zeros(len(kept), dtype=np.int64)
        else:
            lacking = tree.lacking(kept, length)
        self._groups = [(kept[lacking == -1], np.zeros(1, dtype=np.uint64))]
        self._groups += [(kept[lacking == lack], piece) for lack, piece in enumerate(self._pieces)]
        self._limited = limits.within[1] > 0
        self.total = sum(self._possible(*group) for group in self._groups)
        if self.total > MOST_CANDIDATES:
            raise Refused(
                f"Level {level + 1} has {self.total:,} candidates, more than 10^8: search part by part with --prefix, "
                "or make a task with more levels of fewer symbols."
            )

    def _possible(self, prefixes: UInt64s, pieces: UInt64s) -> int:
        if not self._limited:
            return len(prefixes) * len(pieces)
        return sum(int(self._wanted(prefix * self._grow + pieces).sum()) for prefix in prefixes)

    def _wanted(self, numbers: UInt64s) -> Bools:
        """Which candidates agree with the beginning that is asked for, as far as they go."""
        within, length = self._limits.within
        ahead = self._tree.lengths[self._level] - length
        if ahead >= 0:
            return np.asarray(numbers // np.uint64(self._tree.base**ahead) == np.uint64(within))
        return np.asarray(numbers == np.uint64(within // self._tree.base**-ahead))

    def _each(self) -> Iterator[UInt64s]:
        for prefixes, pieces in self._groups:
            step = max(1, _CHUNK // max(1, len(pieces)))
            for start in range(0, len(prefixes), step):
                lot = prefixes[start : start + step, None] * self._grow + pieces
                yield from np.array_split(lot.reshape(-1), max(1, lot.size // (2 * _CHUNK)))

    def standing_out(
        self, evidence: Evidence, share: float, progress: Callable[[int], None]
    ) -> tuple[UInt64s, Floats]:
        """Candidates whose p-value is at most `share`, the smallest first, with their p-values.

        Of very many, only those below one in a thousand. To take fewer than Benjamini and Hochberg would keeps their
        bound: it holds for all step-up rules that ask at least as much.
        Those on the list of what is not to be found are left out: without an end they may begin other keys.
        """
        least = -NormalDist().inv_cdf(min(share, max(_RARE, _FEW / self.total if self.total else 1)))
        numbers, strength = [np.zeros(0, dtype=np.uint64)], [np.zeros(0)]
        for lot in self._each():
            lot = lot[self._wanted(lot)] if self._limited else lot
            found = evidence.of(lot)
            high = found >= least
            numbers.append(lot[high])
            strength.append(found[high])
            progress(len(lot))
        candidates, strengths = np.concatenate(numbers), np.concatenate(strength)
        if self._limits.deny is not None:
            rest = np.uint64(self._tree.base ** (self._tree.longest - self._tree.lengths[self._level]))
            ended = self._limits.deny[self._limits.deny % (rest * np.uint64(self._tree.base)) == 0] // rest
            denied = self._limits.deny if rest == 1 else ended
            fine = ~np.isin(candidates, denied)
            candidates, strengths = candidates[fine], strengths[fine]
        order = np.argsort(-strengths, kind="stable")
        return candidates[order], tails(strengths[order])
