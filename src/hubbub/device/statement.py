"""What a device has said, for its owner: what was sent, when, and what it cost, in words."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass
from typing import Any

from hubbub.device.book import Account, Book, Made
from hubbub.model.guarantee import Guarantee
from hubbub.primitives.text import visible
from hubbub.protocol.periods import CHANGES_SHOW


@dataclass(frozen=True)
class Statement:
    """A ledger's content, seen on one day."""

    book: Book
    day: datetime.date

    def together(self) -> Guarantee | None:
        """What all reports together promise about the person; None if some cannot be counted, or there are none."""
        costs = [cost for cost in self.book.paid() if cost.reports]
        epsilon = math.fsum(cost.epsilon * cost.reports for cost in costs)
        delta = math.fsum(cost.delta * cost.reports for cost in costs)
        if not costs or math.isinf(epsilon) or delta >= 1:
            return None
        number = sum(cost.reports for cost in costs)
        whole = "its only report" if number == 1 else f"all of its {number:,} reports"
        note = f"Holds for {whole}, as if one collector had them and knew whose they are."
        if any(
            account.memo is not None and len(account.memo.reports) > 1
            for account in self.book.accounts.values()
        ):
            note = f"{note} {CHANGES_SHOW}"
        return Guarantee(epsilon, delta=delta, note=note)

    def in_budget(self) -> tuple[float, float] | None:
        """The epsilon that counts against the budget today, and the share of the budget that it is; None without one.

        Infinite if some reports cannot be counted.
        """
        if self.book.budget is None:
            return None
        spent = self.book.budget.spent(self.book.costs(self.day, self.book.budget.days))
        return spent, spent / self.book.budget.epsilon

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        tasks = []
        for digest, account in self.book.accounts.items():
            facts = account.facts
            tasks.append(
                {
                    "task": None if facts is None else facts.name,
                    "digest": digest,
                    "epsilon": None if facts is None else facts.epsilon,
                    "delta": None if facts is None else facts.delta,
                    "unit": None if facts is None else facts.unit,
                    "memoize_cap": 0 if facts is None else facts.memoize_cap,
                    "made": [
                        {
                            "period": period,
                            "day": None if each.day is None else each.day.isoformat(),
                            "to": "shuffler" if each.sealed else "collector",
                            "reports": account.reports(each),
                            "again": each.again,
                        }
                        for period, made in account.periods.items()
                        for each in made
                    ],
                    "reports": sum(map(account.reports, account)),
                }
            )
        together, against, budget = self.together(), self.in_budget(), self.book.budget
        found: dict[str, Any] = {"tasks": tasks, "together": together and together.as_dict(), "budget": None}
        if budget is not None and against is not None:
            spent, share = (None if math.isinf(each) else each for each in against)
            found["budget"] = {**budget.as_dict(), "words": budget.words(), "spent": spent, "share": share}
        return found

    def words(self) -> str:
        """The same for people."""
        used = {digest: account for digest, account in self.book.accounts.items() if any(account)}
        lines = [line for digest, account in used.items() for line in _lines(digest, account)]
        together = self.together()
        if not lines:
            lines.append("Nothing was sent.")
        elif together is not None:
            lines.append(f"Together: {together.words()}")
        else:
            lines.append(
                "Together: what all of this says about its owner is not bounded by any epsilon known here."
            )
        return "\n".join([*lines, self._budget_words()])

    def _budget_words(self) -> str:
        against, budget = self.in_budget(), self.book.budget
        if budget is None or against is None:
            return "There is no budget over all tasks: each task keeps its own rules (hubbub ledger limit sets one)."
        spent, share = against
        if math.isinf(spent):
            return (
                f"Budget: {budget.words()}. Some reports cannot be counted, so no task gets a new one: their task does "
                "not protect whole records, or it was last used before costs were kept."
            )
        span = "So far" if budget.days is None else f"In the last {budget.days} days"
        memoized = any(account.memo is not None for account in self.book.accounts.values())
        aside = " or set aside for records that are still to come" if memoized else ""
        return f"Budget: {budget.words()}. {span} epsilon = {spent:.6g} was spent{aside}, {share:.0%} of it."


def _lines(digest: str, account: Account) -> list[str]:
    """One task: what it is, and a line for each time."""
    facts = account.facts
    if facts is None:
        lines = [
            f"Task {visible(digest)}, last used before costs were kept: they are unknown until it is used again"
        ]
    else:
        delta = f" and delta = {facts.delta:.3g}" if facts.delta else ""
        each = f"each report costs epsilon = {facts.epsilon:.6g}{delta} per {facts.unit}"
        lines = [f"Task {visible(facts.name)} ({digest}): {each}"]
        if facts.memoize_cap:
            most = facts.memoize_cap
            lines.append(
                f"  a record that was reported before gets the same report again, which costs nothing; at most "
                f"{_number(most)} for as many distinct records, ever: epsilon = {facts.epsilon * most:.6g}"
            )
    for period, made in account.periods.items():
        lines += [_line(account, period, each) for each in made]
    count = sum(map(account.reports, account))
    cost = "" if facts is None else f", epsilon = {facts.epsilon * count:.6g} per {facts.unit}"
    return [*lines, f"  in all      {_number(count)}{cost}", ""]


def _line(account: Account, period: str, made: Made) -> str:
    day = "day unknown" if made.day is None else made.day.isoformat()
    way = "sealed for a shuffler" if made.sealed else "to a collector"
    if made.again:
        return f"  {period:<10}  {day:<11}  an earlier report again, {way}"
    return f"  {period:<10}  {day:<11}  {_number(account.reports(made))} {way}"


def _number(count: int) -> str:
    return "1 report" if count == 1 else f"{count:,} reports"
