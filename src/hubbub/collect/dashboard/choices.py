"""What a reader chooses on a task's page, and the addresses of other choices. A page's address says all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, cast
from urllib.parse import urlencode

from hubbub.server.portions import Choice, choice_of

Order = Literal["value", "name"]

#: How many keys are listed, in which order, and the level of intervals in percent; the first of each is the usual one.
SHOWN, ORDERS, LEVELS = (20, 50, 200), ("value", "name"), (95, 80, 99)
#: Labels that an address may name, and characters of each: more than any task has.
_MOST_LABELS, _LONGEST = 20, 100
#: How an address names what is chosen of groups and time, and the fields of `View` that it is in.
_NAMES = {
    "period": "period",
    "from": "since",
    "to": "until",
    "by": "by",
    "first": "first",
    "second": "second",
    "time": "time",
}


@dataclass(frozen=True)
class View:
    """Keys that are looked up, what is estimated, for whom and since when, what is compared, and how it is shown.

    Groups and periods are as the address has them: whether there are such is for the task to say.
    """

    keys: tuple[str, ...] = ()
    quantity: str = ""
    shown: int = SHOWN[0]
    order: Order = "value"
    percent: int = LEVELS[0]
    #: Labels as country=de, one period, and the first and the last.
    where: tuple[str, ...] = ()
    period: str = ""
    since: str = ""
    until: str = ""
    #: A label or "period", and two values of it that are compared.
    by: str = ""
    first: str = ""
    second: str = ""
    #: "all" for the curve of all reports up to each moment, where there is one of each period by itself.
    time: str = ""

    @classmethod
    def parse(
        cls,
        keys: Sequence[str],
        quantity: str,
        shown: str,
        order: str,
        level: str,
        where: Sequence[str] = (),
        given: Mapping[str, str] = MappingProxyType({}),
    ) -> View:
        """What an address asks for; what is not offered is the usual."""
        return cls(
            tuple(dict.fromkeys(keys)),
            quantity,
            next((number for number in SHOWN if str(number) == shown), SHOWN[0]),
            cast(Order, order) if order in ORDERS else "value",
            next((number for number in LEVELS if str(number) == level), LEVELS[0]),
            tuple(text[:_LONGEST] for text in where if text)[:_MOST_LABELS],
            **{field: given.get(name, "")[:_LONGEST] for name, field in _NAMES.items()},
        )

    def choice(self) -> Choice:
        """The groups and periods that are shown; `Refused` if they are not written as such."""
        return choice_of(self.where, self.period or None, self.since or None, self.until or None)

    def of(self, choice: Choice, **changes: Any) -> str:
        """The query of a page that shows these groups and periods."""
        one = choice.first is not None and choice.first == choice.last
        return self.address(
            where=tuple(f"{name}={value}" for name, value in sorted(choice.where.items())),
            period=(choice.first or "") if one else "",
            since="" if one else choice.first or "",
            until="" if one else choice.last or "",
            **changes,
        )

    @property
    def level(self) -> float:
        """Of the intervals."""
        return self.percent / 100

    def fields(self) -> list[tuple[str, str]]:
        """What is not as usual, without the keys."""
        chosen = [
            ("quantity", self.quantity, ""),
            ("show", str(self.shown), str(SHOWN[0])),
            ("order", self.order, ORDERS[0]),
            ("level", str(self.percent), str(LEVELS[0])),
        ]
        groups = [("where", text) for text in self.where]
        groups += [(name, getattr(self, field)) for name, field in _NAMES.items() if getattr(self, field)]
        return [*((name, value) for name, value, usual in chosen if value != usual), *groups]

    def hidden(self, *asked: str) -> list[tuple[str, str]]:
        """What a form keeps that asks for these."""
        kept = [(name, value) for name, value in self.fields() if name not in asked]
        return [*kept, *(("key", key) for key in self.keys)]

    def address(self, **changes: Any) -> str:
        """The query of a page that shows something else."""
        other = replace(self, **changes)
        pairs = [*other.fields(), *(("key", key) for key in other.keys)]
        return f"?{urlencode(pairs)}" if pairs else ""

    def without(self, key: str) -> str:
        """The query of a page that does not look up this key."""
        return self.address(keys=tuple(other for other in self.keys if other != key))

    def offers(self, available: int) -> list[tuple[str, list[tuple[str, str, bool]]]]:
        """What can be chosen: a title, and for each choice its name, its address, and whether it is the present one."""
        counts = [number for place, number in enumerate(SHOWN) if place == 0 or SHOWN[place - 1] < available]
        offered: list[tuple[str, str, list[tuple[str, Any]]]] = [
            ("Keys", "shown", [(f"{min(number, available):,}", number) for number in counts]),
            ("Sorted by", "order", [(name, name) for name in ORDERS]),
            ("Intervals", "percent", [(f"{number}%", number) for number in sorted(LEVELS)]),
        ]
        return [
            (
                title,
                [
                    (name, self.address(**{field: value}) or "?", getattr(self, field) == value)
                    for name, value in choices
                ],
            )
            for title, field, choices in offered
            if len(choices) > 1
        ]
