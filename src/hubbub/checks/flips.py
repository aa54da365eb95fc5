"""Whether the secret coins of single reports have the laws that proofs rest on: bounds, chances and Laplace noise.

Enumeration replaces the coins and takes their laws for granted. Here they are flipped: `SecretCoins` as a `Client` has
them, for the questions that the task's own randomizer asks, and for a few hard ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from hubbub.checks.events import binomial_tail
from hubbub.checks.exact import FixedSeeds
from hubbub.checks.reports import packed_sample
from hubbub.checks.worlds import ends, full_records
from hubbub.primitives.arrays import Int64s
from hubbub.primitives.coins import SecretCoins
from hubbub.primitives.samplers import EMPTY
from hubbub.protocol.task import Task

#: What a randomizer asks its coins: the name of the question and its numbers.
Question = tuple[str, tuple[int, ...]]

#: Questions that a wrong sampler gets wrong: a bit, a bound far from a power of two, many bits, and noise by itself.
_HARD: tuple[Question, ...] = (
    ("below", (2,)),
    ("below", (3,)),
    ("below", (3 << 61,)),
    ("below", (1 << 62,)),
    ("chance", (1, 3)),
    ("clamped_laplace", (0, 5, 2, 20)),
)
#: Questions of the task that are looked at; cells that numbers are sorted into; answers, at least and at most.
_MOST_QUESTIONS, _CELLS = 10, 16
_FEWEST_ANSWERS, _MOST_ANSWERS = 1000, 4000
#: Words of a buffer of compiled code, and buffers that are filled.
_WORDS, _BUFFERS = 4096, 4
#: An event that was counted: what it is, its probability, hits and trials.
Counted = tuple[str, float, int, int]


class _Asked(SecretCoins):
    """Coins that note what they are asked."""

    def __init__(self) -> None:
        self.questions: dict[Question, None] = {}

    def below(self, bound: int) -> int:
        self.questions[("below", (bound,))] = None
        return super().below(bound)

    def chance(self, numerator: int, denominator: int) -> bool:
        if 0 < numerator < denominator:
            self.questions[("chance", (numerator, denominator))] = None
        return super().chance(numerator, denominator)

    def clamped_laplace(self, value: int, numerator: int, denominator: int, limit: int) -> int:
        self.questions[("clamped_laplace", (value, numerator, denominator, limit))] = None
        return super().clamped_laplace(value, numerator, denominator, limit)


def questions_of(task: Task) -> list[Question]:
    """What a report of a full record asks its coins; of many questions, some of every kind."""
    asked = _Asked()
    record = dict.fromkeys(next(iter(full_records(task, 0)))[1], ends(task)[0])
    packed_sample(task, record, 2, FixedSeeds(0, task.mechanism.seeds_per_report), asked)
    kinds = sorted({kind for kind, _ in asked.questions})
    return [
        question
        for kind in kinds
        for question in [each for each in asked.questions if each[0] == kind][: _MOST_QUESTIONS // len(kinds)]
    ]


def biased_coins(task: Task, samples: int, odds: float) -> Iterator[str]:
    """Every count is a binomial of a known probability, which has to lie in its Clopper-Pearson interval.

    Half of `odds` is shared by these. The other half is more than the chance that two of a few thousand numbers of 62
    or 64 bits are the same, which would be coins that come back (1e-10).
    """
    questions = dict.fromkeys([*_HARD, *questions_of(task)])
    counted: list[Counted] = []
    for question in questions:
        counted += _counted(question, min(_MOST_ANSWERS, max(_FEWEST_ANSWERS, samples // 10)) // 2)
    words = np.concatenate([SecretCoins().words(_WORDS) for _ in range(_BUFFERS)])
    bits = (words[:, None] >> np.arange(64) & 1).sum(axis=0)
    counted += [(f"bit {place} of words", 0.5, int(hits), len(words)) for place, hits in enumerate(bits)]
    share = odds / (4 * len(counted))
    for name, probability, hits, trials in counted:
        tails = (binomial_tail(hits, trials, probability, lower_tail) for lower_tail in (False, True))
        if min(tails) < share:
            yield (
                f"coins are biased: {name} came {hits:,} times of {trials:,}, with a probability of {probability:.4f}"
            )
            return
    drawn = [each.below(1 << 62) for each in (SecretCoins(), SecretCoins()) for _ in range(_WORDS)]
    if len(np.unique(words)) < len(words) or len(set(drawn)) < len(drawn):
        yield "coins are used twice: two random numbers of 62 bits or more are the same"


def _counted(question: Question, answers: int) -> Iterator[Counted]:
    """Events of so many answers to a question, and as many again through the call that takes a pool of digits."""
    kind, numbers = question
    coins, each = SecretCoins(), range(answers)
    name = f"{kind}{numbers}".replace(",)", ")")
    if kind == "chance":
        hits = sum(coins.chance(*numbers) for _ in each) + sum(coins.coin(EMPTY, *numbers)[0] for _ in each)
        yield name, numbers[0] / numbers[1], hits, 2 * answers
    elif kind == "below":
        drawn = [coins.below(*numbers) for _ in each] + [coins.draw(EMPTY, *numbers)[0] for _ in each]
        yield from _uniform(name, np.array(drawn), *numbers)
    else:
        yield from _laplace(name, np.array([coins.clamped_laplace(*numbers) for _ in each]), *numbers)


def _uniform(name: str, drawn: Int64s, bound: int) -> Iterator[Counted]:
    """Numbers below a bound: in cells of neighbours, and bit by bit."""
    cells = min(bound, _CELLS)
    starts = [-(-cell * bound // cells) for cell in range(cells + 1)]
    for low, high in pairwise(starts):
        inside = int(((low <= drawn) & (drawn < high)).sum())
        yield f"{name} in {low} .. {high - 1}", (high - low) / bound, inside, len(drawn)
    for bit in range((bound - 1).bit_length()):
        period = 2 << bit
        ones = bound // period * (1 << bit) + max(0, bound % period - (1 << bit))
        yield f"bit {bit} of {name}", ones / bound, int((drawn >> bit & 1).sum()), len(drawn)


def _laplace(
    name: str, drawn: Int64s, value: int, numerator: int, denominator: int, limit: int
) -> Iterator[Counted]:
    """Noise at most so many scales above or below its middle, as far as clamping leaves it; and never outside."""
    scale = numerator / denominator
    decay = math.exp(-1 / scale)
    yield f"{name} out of range", 0.0, int((abs(drawn) > limit).sum()), len(drawn)
    for shift in sorted({round(times * scale) for times in (-3, -2, -1, -0.5, 0, 0.5, 1, 2, 3)} | {-1, 0}):
        if -limit <= value + shift < limit:
            below = decay**-shift / (1 + decay) if shift < 0 else 1 - decay ** (shift + 1) / (1 + decay)
            yield f"{name} at most {value + shift}", below, int((drawn <= value + shift).sum()), len(drawn)
