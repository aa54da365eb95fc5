"""Notice forged reports: tests that honest reports pass, whatever the records are, and careless forgers fail.

Every test rests on what local privacy itself says: seeds are drawn before the record is looked at, and no record makes
a report much likelier than another does. So each has odds that hold for every crowd (`hubbub.server.odds`), and all of
them together raise a false alarm at most once in 1,000 collections (Bonferroni).

Where tasks memoize, a device sends the same report again and again, which looks like forgery: their reports are tested
period by period, and not where nothing tells their period.

What no test can notice: forgers who follow the protocol on invented records, and whatever has the law of an honest
crowd. Against one key, forged reports with fresh seeds do: see "Noticing forged reports" in docs/forgery.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from hubbub.mechanisms.shared.hashed import Hashed
from hubbub.model.state import State
from hubbub.model.telltale import KeyCoins, Telltale, outcome_bounds
from hubbub.primitives.arrays import Int64s, UInt64s
from hubbub.protocol.task import Task
from hubbub.server.evidence import Evidence, Sample, telltales_of, told_by_states
from hubbub.server.odds import MOST_CLASSES, Finding, crowding, outlier, repetition, togetherness, unevenness
from hubbub.server.seed_tests import seed_findings

#: How often honest collections are suspected, at most, all tests together.
FALSE_ALARMS = 1e-3
#: Cells from which on their crowding and evenness is tested.
_MANY = 64
#: Bits that are compared for pairs of keys, reports at a time, and reports from which on that is worth it.
_PAIRED, _CHUNK, _FEWEST_PAIRED = 1 << 31, 1 << 14, 1 << 10


@dataclass(frozen=True)
class Notice:
    """What all tests together say."""

    #: How many reports there are, of which those that are looked at are a fair choice.
    reports: int
    #: Whether reports were looked at, or only the state that they were added up to.
    from_state: bool
    findings: tuple[Finding, ...]
    #: How often an honest collection is suspected, at most: by this look, and by all looks together.
    level: float = FALSE_ALARMS
    false_alarms: float = FALSE_ALARMS
    #: Why nothing can be tested, where that is so.
    untested: str = ""
    #: Reports that were looked at one by one; of the others, where there are any, only what their state says.
    looked: int = 0

    @property
    def odds(self) -> float:
        """How likely honest reports are to look at least as odd in any of the tests, at most."""
        return min([1.0, *(len(self.findings) * found.odds for found in self.findings)])

    @property
    def noticed(self) -> bool:
        """Whether that is too unlikely to be believed."""
        return self.odds <= self.level

    @property
    def suspicious(self) -> tuple[Finding, ...]:
        """Tests that are failed even if all the others are counted against them."""
        return tuple(f for f in self.findings if len(self.findings) * f.odds <= self.level)

    def verdict(self) -> str:
        """In one sentence, without what was found."""
        rate = f"false alarm: 1 in {1 / self.false_alarms:,.0f}"
        what = "the state of " if self.from_state else ""
        if not self.findings:
            why = f": {self.untested}" if self.untested else ""
            return f"Forged reports: nothing can be tested in {what}{self.reports:,} reports{why}."
        if not self.noticed:
            return f"Forged reports: nothing noticed in {what}{self.reports:,} reports ({rate})."
        return f"Forged reports: {what}{self.reports:,} reports are not those of an honest crowd ({rate})."

    def words(self) -> str:
        """The verdict, and why."""
        why = "; ".join(found.words for found in self.suspicious) if self.noticed else ""
        return f"{self.verdict()} Found: {why}." if why else self.verdict()

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            "reports": self.reports,
            "looked_at": self.looked,
            "from_state": self.from_state,
            "noticed": self.noticed,
            "odds": self.odds,
            "false_alarms": self.false_alarms,
            "words": self.words(),
            "unnoticed": UNNOTICED,
            "tests": [{**f.as_dict(), "failed": f in self.suspicious} for f in self.findings],
        }


#: What has to be said beside every verdict.
UNNOTICED = (
    "Forgers who follow the protocol on invented records cannot be noticed, nor, with most mechanisms, those who lift "
    "one key with fresh seeds: their reports have the law of an honest crowd in which more people hold it. Nothing "
    "noticed does not mean that nothing is forged."
)


#: Why a task that memoizes is not tested.
_SAID_AGAIN = "devices say the same in every period, and nothing tells the periods of these reports"


def level_of(look: int) -> float:
    """How often the k-th look may suspect an honest collection: all looks together do at most `FALSE_ALARMS` often.

    Proof. Each look is a test of its own with this false-alarm rate, whatever was seen before, and the sum over all k
    of 6 / (pi k)^2 is 1 (union bound). It has to be known which reports a look is about before they are looked at.
    """
    return float(FALSE_ALARMS * 6 / (np.pi * look) ** 2)


def notice(evidence: Evidence, state: State | None = None, level: float = FALSE_ALARMS) -> Notice:
    """Test some of the reports, and the state of all of them where it is given."""
    task = evidence.task
    memoized = task.memoize != "off"
    found: list[Finding] = []
    for name, sample in evidence.samples.items():
        if not sample.reports:
            continue
        tests = _tested(task, sample, None if memoized else state)
        found += [replace(test, words=f"{name}: {test.words}") if name else test for test in tests]
    if told_by_states(task) and state is not None:
        return Notice(state.count, False, tuple(_of_state(task, state)), level)
    untested = _SAID_AGAIN if memoized and not found else ""
    looked = sum(len(sample.kept) for sample in evidence.samples.values())
    return Notice(
        evidence.reports + evidence.untold, False, tuple(found), level, untested=untested, looked=looked
    )


def notice_state(task: Task, state: State, level: float = FALSE_ALARMS) -> Notice:
    """Test a state: the reports that it keeps, or else what its counts say."""
    if task.memoize != "off":
        return Notice(state.count, True, (), level, untested=_SAID_AGAIN)
    if task.mechanism.keeps_reports(task.keys):
        evidence = Evidence(task)
        evidence.add_packed(state.reports)
        return notice(evidence, state, level)
    return Notice(state.count, True, tuple(_of_state(task, state)), level)


def _tested(task: Task, sample: Sample, state: State | None) -> list[Finding]:
    """The tests of one choice of reports, and of the state of all of them."""
    kept, found = sample.kept, [] if state is None else _of_state(task, state)
    for telltale in telltales_of(task):
        if state is None or telltale.of_state is None:
            counts = np.bincount(telltale.read(kept), minlength=telltale.cells)
            found += _counted(telltale, counts, len(kept), sample.stride == 1)
        if telltale.coins is not None:
            found += _paired(telltale.coins, kept)
    if len(kept) > 1:
        if (
            task.memoize == "off"
        ):  # of a device that comes late and names no period, two may be counted in one
            found += _repeated(task, kept)
        found += seed_findings(task, kept)
    if state is None:
        found += _named(task, kept)
    return found


def _of_state(task: Task, state: State) -> list[Finding]:
    """What can be tested of a state, in full."""
    found: list[Finding] = []
    if state.count and not task.mechanism.keeps_reports(task.keys):
        for telltale in telltales_of(task):
            if telltale.of_state is not None:
                found += _counted(telltale, telltale.of_state(state), state.count, True)
        found += _named(task, state)
    return found


def _counted(telltale: Telltale, counts: Int64s, reports: int, whole: bool) -> list[Finding]:
    """The tests of one telltale; `whole` says whether these are all reports."""
    name, what = telltale.name, telltale.what
    if reports == 0:
        return []
    odds = outlier(counts, reports, telltale.least, telltale.most)
    top = int((counts / np.maximum(telltale.most, 1e-300)).argmax())
    words = f"the oddest of the {what} has {counts[top]:,} of {reports:,} reports"
    found = [Finding(name, words, odds)]
    if telltale.cells < _MANY:
        return found
    if telltale.exact:
        if len(np.unique(telltale.most)) <= MOST_CLASSES:
            square = float(((counts - reports * telltale.most) ** 2 / (reports * telltale.most)).sum())
            words = f"squared deviations of the {what} are {square / telltale.cells:.3f} of what is expected"
            # Reports that are sorted and of which some are looked at are more even than a draw: that is no forgery.
            odds = unevenness(counts, reports, telltale.most, both=whole)
            found.append(Finding(f"{name}_evenness", words, odds))
    elif np.ndim(telltale.most) == 0:
        odds = crowding(counts, reports, float(telltale.most))
        fullest = np.sort(counts)[-(telltale.cells // _MANY) :].sum() / reports
        words = f"the fullest {1 / _MANY:.1%} of the {what} have {fullest:.1%} of the reports"
        found.append(Finding(f"{name}_crowding", words, odds))
    return found


def _paired(coins: KeyCoins, kept: UInt64s) -> list[Finding]:
    """Keys that are named together more often than coins fall together, as where forgers always name several."""
    reports = min(len(kept), _PAIRED // coins.keys**2)
    if reports < _FEWEST_PAIRED or coins.keys < 2:
        return []
    sets = [
        np.packbits(coins.named(kept[start : min(start + _CHUNK, reports)]), axis=0).T
        for start in range(0, reports, _CHUNK)
    ]
    bits = np.concatenate(sets, axis=1)
    lots = np.ascontiguousarray(np.pad(bits, ((0, 0), (0, -bits.shape[1] % 8)))).view(np.uint64)
    both = np.zeros((coins.keys, coins.keys), dtype=np.float64)
    for key in range(coins.keys):
        both[key, key:] = np.bitwise_count(lots[key:] & lots[key]).sum(axis=1, dtype=np.int64)
    each = np.diag(both).copy()
    odds = togetherness(both, each, reports, coins.idle, coins.held)
    np.fill_diagonal(both, 0)
    words = f"two keys are named together in {int(both.max()):,} of {reports:,} reports"
    return [Finding("keys_together", words, odds)]


@lru_cache(maxsize=64)
def _factors(fields: int) -> UInt64s:
    """Odd numbers: multiplied by these and added up, different reports come to the same once in 2^64 times."""
    halves = np.random.default_rng(23).integers(0, 1 << 63, fields, dtype=np.uint64)
    return halves * np.uint64(2) + np.uint64(1)


def _repeated(task: Task, kept: UInt64s) -> list[Finding]:
    """Reports that equal each other: seed, outcome and all."""
    likeliest = task.mechanism.likeliest()
    if likeliest * len(kept) >= 1:
        return []
    mixed = np.sort(kept @ _factors(kept.shape[1]))
    repeats = int((mixed[1:] == mixed[:-1]).sum())
    words = f"{repeats:,} of {len(kept):,} reports equal another one"
    return [Finding("equal_reports", words, repetition(repeats, len(kept), likeliest))]


def _named(task: Task, found: State | UInt64s) -> list[Finding]:
    """Keys that are named more often than if everybody held them, or less often than if nobody did (sets of keys)."""
    mechanism, keys = task.mechanism, task.keys
    weights = getattr(mechanism, "response_weights", lambda: None)()
    if weights is None or mechanism.values != "set" or keys.kind != "closed" or keys.tree:
        return []
    if not isinstance(mechanism, Hashed) or mechanism.keeps_reports(keys):
        return []
    state = found
    if not isinstance(state, State):
        state = mechanism.empty(keys)
        mechanism.absorb(state, keys, np.asarray(found))
    named = mechanism.tally(state, keys, keys.all_ids())[0]
    least, most = outcome_bounds(weights, mechanism.seeds_per_report)
    words = f"a key is named by {named.max():,} of {state.count:,} reports"
    return [Finding("possible_shares", words, outlier(named, state.count, least, most))]
