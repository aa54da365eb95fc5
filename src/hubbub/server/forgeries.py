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
from hubbub.model.hashing import bucket_bits, seed_rows
from hubbub.model.keys import Keys
from hubbub.model.state import State
from hubbub.model.telltale import Telltale, outcome_bounds, sharing
from hubbub.primitives.arrays import Int64s, UInt64s
from hubbub.primitives.walsh import scatter, transform
from hubbub.protocol.task import Task
from hubbub.server.evidence import Evidence, Remembered, Sample, telltales_of, told_by_states
from hubbub.server.odds import MOST_CLASSES, crowding, outlier, repetition, unevenness

#: How often honest collections are suspected, at most, all tests together.
FALSE_ALARMS = 1e-3
#: Cells from which on their crowding and evenness is tested.
_MANY = 64
#: Bits of seeds of which all are looked at.
_FEW_SEEDS = 16
#: The largest universe of codes that is searched for pairs that share buckets.
_MOST_BITS = 20


@dataclass(frozen=True)
class Finding:
    """One test: what was looked at, what was found, and the odds of honest reports looking like this, at most."""

    test: str
    words: str
    odds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dict(vars(self))


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
            "from_state": self.from_state,
            "noticed": self.noticed,
            "odds": self.odds,
            "false_alarms": self.false_alarms,
            "words": self.words(),
            "tests": [{**f.as_dict(), "failed": f in self.suspicious} for f in self.findings],
        }


#: What has to be said beside every verdict.
UNNOTICED = (
    "Forgers who follow the protocol on invented records cannot be noticed, nor can anybody whose reports have the law "
    "of an honest crowd's: nothing noticed does not mean that nothing is forged."
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
    return Notice(evidence.reports + evidence.untold, False, tuple(found), level, untested=untested)


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
    if len(kept) > 1:
        if (
            task.memoize == "off"
        ):  # of a device that comes late and names no period, two may be counted in one
            found += _repeated(task, kept)
        found += _shared(task, kept)
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


def _shared(task: Task, kept: UInt64s) -> list[Finding]:
    """Seeds under which two keys share a bucket, whichever two: where forgers look for seeds that serve several keys.

    Honest devices report such seeds as often as they are among all seeds, up to what a record does to a seed.
    """
    mechanism, keys = task.mechanism, task.keys
    if not isinstance(mechanism, Hashed) or mechanism.family != "walsh" or mechanism.buckets < 2:
        return []
    if keys.kind == "wide" or keys.bits > _MOST_BITS:
        return []
    first = telltales_of(task)[0]
    excess = first.cells * float(first.most)  # by which factor a record makes a seed likelier, at most
    share = np.minimum(1.0, excess * _sharing(task))
    seeds = np.ascontiguousarray(kept[:, 0])
    if mechanism.seed_bits <= _FEW_SEEDS:
        counts = np.bincount(seeds.view(np.int64), minlength=1 << mechanism.seed_bits)
        together = shared_buckets(mechanism, keys, _all_rows(task), counts)
    else:
        together = shared_buckets(mechanism, keys, _rows(task, seeds))
    words = f"two keys share a bucket in {together.max():,} of {len(kept):,} reports"
    return [Finding("shared_buckets", words, outlier(together, len(kept), 0.0, share))]


def _rows(task: Task, seeds: UInt64s) -> Int64s:
    """The rows of seeds that buckets are made of."""
    assert isinstance(task.mechanism, Hashed)
    return seed_rows(task.keys, seeds, bucket_bits(task.mechanism.buckets))[:, 1:].astype(np.int64)


def _rows_of_all(task: Task) -> Int64s:
    assert isinstance(task.mechanism, Hashed)
    return _rows(task, np.arange(1 << task.mechanism.seed_bits, dtype=np.uint64))


_all_rows = Remembered(_rows_of_all, 8)


def _share_of_seeds(task: Task) -> Any:
    """Of all seeds, those under which two codes share a bucket, for each difference of codes, or at most."""
    mechanism = task.mechanism
    assert isinstance(mechanism, Hashed)
    if mechanism.seed_bits > _FEW_SEEDS:
        return sharing(mechanism.buckets, mechanism.seed_bits)
    return shared_buckets(mechanism, task.keys, _all_rows(task)) / (1 << mechanism.seed_bits)


_sharing = Remembered(_share_of_seeds)


def shared_buckets(mechanism: Hashed, keys: Keys, rows: Int64s, counts: Int64s | None = None) -> Int64s:
    """For every x but 0: under how many seeds two codes that differ by x share a bucket (family walsh).

    `rows` are those of the seeds; with `counts`, a seed counts so often.

    Hashing is linear: they do where x itself has bucket 0. So these are the sums of one vote for bucket 0 per seed.
    """
    totals = np.zeros(1 << keys.bits, dtype=np.int64)
    zeros = np.zeros(len(rows), dtype=np.int64)
    scatter(totals, zeros, rows, zeros, (zeros + 1 if counts is None else counts)[:, None])
    return transform(totals)[1:] // mechanism.buckets


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
