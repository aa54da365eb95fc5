"""What a reader chooses on a task's page, and the addresses of other choices. A page's address says all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast
from urllib.parse import urlencode

Order = Literal["value", "name"]

#: How many keys are listed, in which order, and the level of intervals in percent; the first of each is the usual one.
SHOWN, ORDERS, LEVELS = (20, 50, 200), ("value", "name"), (95, 80, 99)


@dataclass(frozen=True)
class View:
    """Keys that are looked up, what is estimated, and how it is shown."""

    keys: tuple[str, ...] = ()
    quantity: str = ""
    shown: int = SHOWN[0]
    order: Order = "value"
    percent: int = LEVELS[0]

    @classmethod
    def parse(cls, keys: Sequence[str], quantity: str, shown: str, order: str, level: str) -> View:
        """What an address asks for; what is not offered is the usual."""
        return cls(
            tuple(dict.fromkeys(keys)),
            quantity,
            next((number for number in SHOWN if str(number) == shown), SHOWN[0]),
            cast(Order, order) if order in ORDERS else "value",
            next((number for number in LEVELS if str(number) == level), LEVELS[0]),
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
        return [(name, value) for name, value, usual in chosen if value != usual]

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
