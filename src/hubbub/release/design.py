"""Which algorithm with which parameters, from the budget and public bounds only.

A plan never looks at the data. Bounds the holder does not give are either derived from those given (a sum is at
most entries x largest value; counts have at most as many entries as their sum), or estimated privately with
SHARE of epsilon (`sizes`). The choice is the AUTOMATIC algorithm with the smallest worst predicted error (root
mean square, over true values 1, 2, 4, ... up to the bound) whose file has at most 16 MiB or 64 bytes per entry,
besides the list of keys where one is declared. Then, as for few whole numbers, it is noise on every key.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from hubbub.primitives.errors import Refused
from hubbub.release.alp import MOST_LEVELS, Alp
from hubbub.release.artifact import Parameters, Sizes
from hubbub.release.goal import ALGORITHMS, Algorithm, Goal
from hubbub.release.keyspace import KeySpace
from hubbub.release.laplace import MOST_ENTRIES, Laplace
from hubbub.release.maximum import MaxProjection
from hubbub.release.part import Part, int_type
from hubbub.release.prediction import Crowd, predict, reads
from hubbub.release.threshold import Threshold
from hubbub.release.trials import inner_error, ones_after
from hubbub.release.vector import Values

#: What is chosen without being asked for. Max projections have weak tails, log-encoding errs by a factor, and
#: the histogram variant is one of the gaps that alp tries.
AUTOMATIC: tuple[Algorithm, ...] = ("laplace", "threshold", "alp", "threshold-alp")

#: Share of epsilon for private size estimates, where bounds are missing.
SHARE = 0.05
#: Planned share of cells that entries set: the first as long as the array has at most so many bits, or so many per
#: entry, and never more than the second. At 1/32 strangers' bits make errors a fifth larger than at 1/128.
SPARSE, LOAD = 1 / 128, 1 / 32
_MOST_BITS, _MOST_BITS_PER_ENTRY = 1 << 23, 256
#: Empty entries that a pure threshold may list, as a share of the entries.
EXTRA = 1 / 20
#: And their number: each is drawn by itself, which takes some microseconds and a hundred bytes.
_MOST_EXTRA = 1 << 24
#: alpha of log-encoded levels: the paper's choice for small additive error (Section 6).
_LOG_ALPHA = 3.07
#: Below it, bits of one unit each are so noisy that a histogram is never the best, and slow to predict.
_LEAST_GAIN = 0.2
_NANOSECONDS = 25


@dataclass(frozen=True)
class Prediction:
    """One algorithm as it would do: errors are in the unit of the values."""

    algorithm: Algorithm
    parts: tuple[Part, ...]
    bytes: int
    small: float
    middle: float
    large: float
    worst: float
    reads: int

    @property
    def microseconds(self) -> float:
        """Rough time per key in a batch."""
        return self.reads * _NANOSECONDS / 1000 + 0.1

    def as_dict(self) -> dict[str, Any]:
        shown = {name: value for name, value in asdict(replace(self, parts=())).items() if name != "parts"}
        return {
            **shown,
            "microseconds": self.microseconds,
            "parts": [part.model_dump() for part in self.parts],
        }


@dataclass(frozen=True)
class Plan:
    """The chosen parameters, what they promise, and the alternatives."""

    goal: Goal
    parameters: Parameters
    chosen: Prediction
    others: tuple[Prediction, ...]
    unsuitable: dict[str, str]
    probes: tuple[float, float, float]

    def as_dict(self) -> dict[str, Any]:
        return {
            "chosen": self.chosen.as_dict(),
            "others": [other.as_dict() for other in self.others],
            "unsuitable": self.unsuitable,
            "values_of_small_middle_large": self.probes,
            "guarantee": self.parameters.guarantee().as_dict(),
        }


class _Unsuitable(Exception):
    """Why an algorithm cannot serve a goal."""


@dataclass(frozen=True)
class _Case:
    """A goal with its bounds worked out; sizes of the vector are in steps of the grid."""

    goal: Goal
    values: Values
    keys: KeySpace
    epsilon: float
    nonzero: float | None
    total: float

    @property
    def extra(self) -> float | None:
        return None if self.nonzero is None else max(1.0, EXTRA * self.nonzero)

    def ones(self, cap: float, gap: float) -> float:
        """Bits that entries of at most `cap` set in the mean: rounding keeps the sum."""
        return min(self.total, (self.nonzero or math.inf) * cap) / gap

    def crowd(self, load: float, cap: float) -> Crowd:
        """Public bounds on the size of an entry that is met by chance."""
        mean = min(cap, self.total / self.nonzero) if self.nonzero else cap
        return Crowd(load, mean, mean * cap)


def plan(goal: Goal, sizes: Sizes | None = None, salt: str | None = None) -> Plan:
    """The best algorithm for a goal; private size estimates stand in for missing bounds."""
    if goal.needs_sizes() and sizes is None:
        raise Refused("Give max_nonzero or max_sum, or let a share of epsilon estimate them.")
    case = _case(goal, sizes, salt)
    wanted = ALGORITHMS if goal.algorithm is None else (goal.algorithm,)
    found: list[Prediction] = []
    unsuitable: dict[str, str] = {}
    for algorithm in wanted:
        try:
            found.append(min(_candidates(algorithm, case), key=lambda candidate: candidate.worst))
        except _Unsuitable as reason:
            unsuitable[algorithm] = str(reason)
    found.sort(key=lambda other: (other.worst, other.bytes))
    if goal.algorithm is None:
        budget = max(float(1 << 24), 64 * (case.nonzero or 0)) + case.keys.list_bytes
        oversized = [other for other in found if other.bytes > budget]
        unsuitable |= {other.algorithm: f"would make a file of {other.bytes:,} bytes" for other in oversized}
        found = [other for other in found if other.bytes <= budget]
    fitting = [other for other in found if goal.algorithm or other.algorithm in AUTOMATIC]
    if not fitting:
        raise Refused(f"No algorithm fits: {'; '.join(f'{a} {why}' for a, why in unsuitable.items())}.")
    chosen = fitting[0]
    parameters = Parameters(
        algorithm=chosen.algorithm,
        values=case.values,
        keys=case.keys,
        parts=chosen.parts,
        estimator=goal.estimator,
        sizes=sizes,
        format=1 if goal.users is None else 2,
        users=goal.users,
        epsilon=goal.epsilon,
        delta=goal.delta if any(part.delta for part in chosen.parts) else 0.0,
    )
    step = case.values.step
    small, middle, large = (probe * step for probe in _probes(case))
    others = tuple(other for other in found if other is not chosen)
    return Plan(goal, parameters, chosen, others, unsuitable, (small, middle, large))


def split(epsilon: float, share: float) -> tuple[float, float]:
    """Two budgets whose exact sum is at most epsilon."""
    first = epsilon * share
    second = epsilon - first
    while Fraction(first) + Fraction(second) > Fraction(epsilon):
        second = math.nextafter(second, 0)
    return first, second


def _case(goal: Goal, sizes: Sizes | None, salt: str | None) -> _Case:
    """Bounds on entries, sum and values: the smallest that follow from what is public."""
    top = goal.max_value or math.inf
    nonzero = min(
        goal.max_nonzero or math.inf,
        (sizes and sizes.nonzero) or math.inf,
        goal.possible or math.inf,
    )
    total = min(goal.max_sum or math.inf, sizes.total if sizes else math.inf, nonzero * top)
    if goal.kind == "counts":
        nonzero = min(nonzero, total)
    values = goal.values(total)
    keys = goal.key_space(salt or secrets.token_hex(16))
    epsilon = goal.unit_epsilon if sizes is None else split(goal.unit_epsilon, SHARE)[1]
    total = min(total, nonzero * values.max_value) / values.step
    return _Case(goal, values, keys, epsilon, None if nonzero == math.inf else nonzero, total)


def _probes(case: _Case) -> tuple[int, int, int]:
    """Small, middle and large true values: one unit, the geometric middle, a tenth below the bound; in steps."""
    unit = 1 << case.values.fraction_bits
    top = max(case.values.top - case.values.top // 10, unit)
    return unit, round(math.sqrt(unit * top)), top


def _candidates(algorithm: Algorithm, case: _Case) -> Iterator[Prediction]:
    """All parameter choices for an algorithm that are worth comparing."""
    head, _, tail = algorithm.rpartition("-")
    if not head and tail in ("laplace", "threshold"):
        alone = _laplace(case) if tail == "laplace" else _threshold(case, case.epsilon)
        yield _prediction(algorithm, (alone,), case, Crowd(0, 0, 0))
        return
    array = _ARRAYS[tail]
    if not head:
        part, load = array(case, case.epsilon, case.values.top)
        yield _prediction(algorithm, (part,), case, case.crowd(load, case.values.top))
        return
    for share in (0.15, 0.25, 0.4):
        first, second = split(case.epsilon, share)
        listed = _threshold(case, first)
        # Larger values are listed, so levels end at the threshold. (Lemma 5.9 takes the wrong epsilon for it.)
        cap = min(listed.threshold, case.values.top)
        part, load = array(case, second, cap)
        yield _prediction(algorithm, (listed, part), case, case.crowd(load, cap))


def _laplace(case: _Case) -> Laplace:
    if case.keys.universe > MOST_ENTRIES:
        raise _Unsuitable(f"needs at most {MOST_ENTRIES:,} possible keys")
    return Laplace.make(case.values, case.epsilon)


def _threshold(case: _Case, epsilon: float) -> Threshold:
    if not case.goal.delta and (case.extra or 0) > _MOST_EXTRA:
        raise _Unsuitable(f"would list {case.extra:,.0f} keys that are not in the table")
    return Threshold.make(case.values, case.keys, epsilon, case.goal.delta, case.extra, case.goal.users)


def _alp(case: _Case, epsilon: float, cap: int) -> tuple[Part, float]:
    """The longest gap, hence the smallest array, within 4 per cent of the least error away from both ends."""
    gain = float(case.values.gain(epsilon))
    gaps = {max(1, round(factor * 3 / gain)) for factor in (0.5, 0.7, 1, 1.4)}
    tried = [_linear(case, epsilon, cap, gap) for gap in sorted(gaps, reverse=True)]
    errors = [inner_error(part.gap, part.p, ones_after(part.p, load)) for part, load in tried]
    return next(c for c, error in zip(tried, errors, strict=True) if error <= 1.04 * min(errors))


def _histogram(case: _Case, epsilon: float, cap: int) -> tuple[Part, float]:
    if case.values.kind != "counts":
        raise _Unsuitable("is for counts")
    if case.goal.algorithm is None and case.values.gain(epsilon) < _LEAST_GAIN:
        raise _Unsuitable("would read very many cells; alp puts several units into one")
    return _linear(case, epsilon, cap, 1)


def _linear(case: _Case, epsilon: float, cap: int, gap: int) -> tuple[Alp, float]:
    levels = -(-cap // gap)
    if levels > MOST_LEVELS:
        raise _Unsuitable(f"values up to {cap * case.values.step:,.0f} need too many levels")
    span, load = _span(case.ones(cap, gap), case.nonzero)
    return Alp.make(case.values, epsilon, span, levels, gap), load


def _log(case: _Case, epsilon: float, cap: int) -> tuple[Part, float]:
    """Section 6 with B from Lemma 6.2; growth per level is B^(alpha / epsilon)."""
    if case.values.signed:
        raise _Unsuitable("is for values of at least 0")
    gamma = (_LOG_ALPHA + 2) / (1 + _LOG_ALPHA * LOAD) - 2
    p = 1 / (gamma + 2)
    growth = (4 * (p - p * p)) ** -0.25
    base_log = math.log(growth) * epsilon / _LOG_ALPHA
    gap = max(1, math.ceil((growth - 1) / base_log / case.values.step))
    levels = max(1, math.ceil(math.log(max(cap * (growth - 1) / gap, 1.01), growth)))
    ones = min(case.ones(cap, gap), (case.nonzero or math.inf) * levels)
    span, load = _span(ones, case.nonzero)
    return Alp.make(case.values, epsilon, span, levels, gap, growth), load


def _max(case: _Case, epsilon: float, cap: int) -> tuple[Part, float]:
    """Cells for a crowding of LOAD, or the paper's epsilon * sum where entries cannot be bounded."""
    if case.nonzero is None:
        span, crowding = math.ceil(epsilon * case.ones(cap, 1) * case.values.step), 1.0
    else:
        span, crowding = math.ceil(case.nonzero / LOAD), LOAD
    if span > 1 << 32:
        raise _Unsuitable("needs more than 2^32 cells")
    return MaxProjection.make(case.values, epsilon, max(span, 64), crowding), crowding


_ARRAYS: dict[str, Callable[[_Case, float, int], tuple[Part, float]]] = {
    "alp": _alp,
    "histogram": _histogram,
    "log": _log,
    "max": _max,
}


def _span(ones: float, entries: float | None) -> tuple[int, float]:
    """Cells for a load from SPARSE to LOAD, or as many as 32-bit hashes reach if the load is then still moderate."""
    load = min(max(SPARSE, ones / max(_MOST_BITS, _MOST_BITS_PER_ENTRY * (entries or 0))), LOAD)
    span = min(max(64, 64 * math.ceil(ones / load / 64)), 1 << 32)
    if ones > span / 8:
        raise _Unsuitable("needs more than 2^32 cells")
    return span, max(load, ones / span)


def _prediction(algorithm: Algorithm, parts: tuple[Part, ...], case: _Case, crowd: Crowd) -> Prediction:
    small, middle, large = _probes(case)
    values = {small, middle, large, *(small << n for n in range(52) if small << n < large)}
    errors = {value: predict(parts, value, crowd) for value in values}
    step = case.values.step
    return Prediction(
        algorithm,
        parts,
        sum(_bytes(part, case) for part in parts) + case.keys.list_bytes,
        errors[small][0] * step,
        errors[middle][0] * step,
        errors[large][0] * step,
        math.sqrt(max(square for _, square in errors.values())) * step,
        reads(parts[-1], small, crowd),
    )


def _bytes(part: Part, case: _Case) -> int:
    """Expected size of a part's arrays."""
    if isinstance(part, Threshold):
        entries = (case.nonzero or case.total * case.values.step) * (1 if part.delta else 1 + EXTRA)
        over = min(entries, case.total / part.threshold)
        width = 4 if case.keys.universe <= 1 << 32 else 8
        return math.ceil(over * (width + np.dtype(int_type(part.limit)).itemsize))
    shapes = part.shapes(case.values, case.keys).values()
    return sum(np.dtype(kind).itemsize * (length or 0) for kind, length in shapes)
