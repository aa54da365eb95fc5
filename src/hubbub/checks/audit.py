"""An independent look at a task's privacy claim, by running what ships.

Exact: small instances of the task's mechanism, and the task itself where it is small enough, are enumerated: every
outcome of every coin, through the same code, seed and wire included. See `hubbub.checks.enumerated`.

Sampled: at real size, reports are drawn for pairs of records that are easy to tell apart, and give a lower bound on
epsilon; what the proofs take for granted about seeds and coins is tested, too. See `hubbub.checks.sampling`.

Neither proves a claim. `Audit.scope` says in one line what has been excluded, and what has not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hubbub.checks.effort import affordable_samples
from hubbub.checks.enumerated import exact_audit
from hubbub.checks.events import binomial_bound
from hubbub.checks.exact import NotEnumerable
from hubbub.checks.finding import POWER, Finding, entries_in_words
from hubbub.checks.pairs import narrow_task
from hubbub.checks.sampling import reports_drawn, sampled_audit
from hubbub.protocol.task import Task

__all__ = ["Audit", "Finding", "audit", "binomial_bound", "exact_audit", "reports_drawn", "sampled_audit"]


@dataclass(frozen=True)
class Audit:
    """All findings about a task, and why there is no exact one, if so."""

    findings: tuple[Finding, ...]
    not_enumerated: str = ""

    @property
    def refuted(self) -> bool:
        """Whether the claim cannot be true."""
        return any(finding.refuted for finding in self.findings)

    def excluded(self) -> list[str]:
        """What the findings speak against; nothing if they refute the claim."""
        if self.refuted:
            return []
        said = []
        for finding in self.findings:
            if finding.kind == "exact":
                small = f"of at most {entries_in_words(finding.entries)}"
                given = f"{finding.pairs_as_given:,} of the task as it is, the others " * bool(
                    finding.pairs_as_given
                )
                said.append(
                    f"a loss above epsilon = {finding.claimed:g} in {finding.pairs:,} enumerated pairs of records "
                    f"({given}{small})"
                )
            else:
                if finding.smallest_excess is not None:
                    said.append(
                        f"a loss above {1 + finding.smallest_excess:.3g} epsilon in the event tested in "
                        f"{finding.pairs} pairs {finding.size} (with probability {POWER:g})"
                    )
                if finding.tested:
                    said.append(f"{', '.join(finding.tested)}, as far as samples show")
        return said

    def not_excluded(self) -> list[str]:
        """What nobody has looked at, or could not have seen."""
        said = [self.not_enumerated] if self.not_enumerated else []
        for finding in self.findings:
            if finding.kind == "exact":
                said.append(
                    f"faults that need more than {entries_in_words(finding.entries)} or other records"
                )
            else:
                unseen = "smaller losses, other events or other pairs at real size"
                if finding.smallest_excess is None:
                    shown = f"the {finding.pairs} pairs sampled {finding.size} show {finding.found:.2f}"
                    unseen = f"any excess at real size ({shown} of epsilon = {finding.claimed:g})"
                said += [unseen, *finding.not_tested]
        return [*said, "what happens outside the randomizer"]

    def scope(self) -> str:
        """What has been excluded and what has not, in one line."""
        return f"Excluded: {'; '.join(self.excluded()) or 'nothing'}. Not excluded: {'; '.join(self.not_excluded())}."

    def words(self) -> str:
        """What was found, a paragraph each, and what that excludes."""
        paragraphs = [f"{finding.kind.capitalize()}: {finding.words()}" for finding in self.findings]
        return "\n\n".join([*paragraphs, self.scope()])

    __str__ = words

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            "findings": [finding.as_dict() for finding in self.findings],
            "refuted": self.refuted,
            "excluded": self.excluded(),
            "not_excluded": self.not_excluded(),
            "scope": self.scope(),
        }


def audit(
    task: Task,
    samples: int | None = None,
    confidence: float = 1 - 1e-6,
    exact: bool = True,
    progress: Callable[[int], None] = lambda done: None,
) -> Audit:
    """Both audits of a task, as far as they are possible; without `samples`, as many as take seconds.

        found = hubbub.audit(task)
        print(found)            # what was found, and what that excludes
        assert not found.refuted

    `exact` is whether small instances are enumerated; `confidence` is that of the sampled lower bound. Of a task with
    several messages, a single one is looked at, which is what its guarantee is about.
    """
    if task.messages:
        one = audit(task.model_copy(update={"messages": 0.0}), samples, confidence, exact, progress)
        together = "what the messages of one person say together"
        return Audit(one.findings, "; ".join(filter(None, [one.not_enumerated, together])))
    wanted = affordable_samples(narrow_task(task)[0]) if samples is None else samples
    sampled = sampled_audit(task, wanted, confidence, progress=progress)
    if not exact:
        return Audit((sampled,), "faults of small instances (not enumerated)")
    try:
        return Audit((exact_audit(task), sampled))
    except NotEnumerable as problem:
        return Audit((sampled,), f"what enumeration would show ({str(problem).rstrip('.')})")
