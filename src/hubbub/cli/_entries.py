"""What `hubbub plan` knows about records, from counts or from a table, and the max-entries that is best for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import click

from hubbub.cli._common import EXISTING
from hubbub.primitives.errors import Refused

if TYPE_CHECKING:
    from hubbub.model.mechanism import Goal
    from hubbub.plan.entries import Limit
    from hubbub.plan.profile import Profile
    from hubbub.tables.sources import TextForm


class Rules(TypedDict):
    """What may be taken."""

    most_bytes: int | None
    name: str | None
    best: bool


def entries_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options about records."""
    for option in reversed(
        (
            click.option(
                "--like", type=EXISTING, help="Table of records that a crowd could have: plan for these."
            ),
            click.option("--user", help="With --like: column that says whose row it is."),
            click.option("--key", help="With --like: column with the key."),
            click.option(
                "--entries", type=EXISTING, help="CSV of entries,users: also say which max-entries is best."
            ),
            click.option("--frequency", type=float, help="Of the most frequent key, for --entries."),
            click.option(
                "--shares", type=EXISTING, help="CSV of share,keys: the keys that --entries is about."
            ),
        )
    ):
        function = option(function)
    return function


@dataclass(frozen=True)
class Known:
    """Records that a plan is for: the users and keys of a table, or files with counts."""

    entries: Path | None
    frequency: float | None
    shares: Path | None
    form: TextForm
    #: Of a table.
    profile: Profile | None = None
    users: int = 0
    keys: int = 0

    @classmethod
    def of(
        cls,
        like: Path | None,
        columns: tuple[str | None, str | None],
        entries: Path | None,
        frequency: float | None,
        shares: Path | None,
        form: TextForm,
    ) -> Known | None:
        """None if nothing is said about records."""
        if like is None:
            if columns != (None, None):
                raise Refused("--user and --key name columns of a table: give --like.")
            if entries is None and (frequency is not None or shares is not None):
                raise Refused("--frequency and --shares are about --entries.")
            if frequency is not None and shares is not None:
                raise Refused("Give --frequency or --shares, not both.")
            return None if entries is None else cls(entries, frequency, shares, form)
        if not (entries is None and frequency is None and shares is None):
            raise Refused("A table says it all: --like goes without --entries, --frequency and --shares.")
        if None in columns:
            raise Refused("Name the columns of the table with --user and --key.")
        import numpy as np

        from hubbub.plan.profile import Profile
        from hubbub.tables.records import read_table
        from hubbub.tables.sources import Source

        table = read_table(Source(like, form), *columns)
        keys = len(table.keys)
        pairs = np.unique(np.asarray(table.user, dtype=np.int64) * keys + table.key)
        profile = Profile.of_records(pairs // max(keys, 1), pairs % max(keys, 1), table.users)
        return cls(None, None, None, form, profile, table.users, keys)

    def _profile(self, keys: int) -> Profile:
        """Which keys are held by whom, as far as it is known."""
        from hubbub.plan.profile import Lengths, Profile
        from hubbub.tables.counts import read_pairs
        from hubbub.tables.sources import Source

        if self.profile is not None:
            if self.keys > keys:
                raise Refused(
                    f"The table has {self.keys:,} keys, and there are to be {keys:,}: leave the others out of it."
                )
            return self.profile
        assert self.entries is not None
        lengths = Lengths.of(
            dict(read_pairs(Source(self.entries, self.form), "entries and users", int)), keys
        )
        if self.shares is None:
            return Profile.zipf(lengths, keys, self.frequency)
        shares = read_pairs(Source(self.shares, self.form), "a share and a number of keys", float)
        return Profile.given(lengths, keys, shares)

    def limits(
        self, data: dict[str, Any], lines: list[str], goal: Goal, size: float, rules: Rules
    ) -> list[Limit]:
        """Which max_entries is best: in the data, and in words."""
        from hubbub.plan.entries import entry_limits

        profile = self._profile(goal.keys)
        limits = entry_limits(goal, profile, size, **rules)
        data["profile"] = profile.words()
        data["max_entries"] = [limit.as_dict() for limit in limits]
        lines.append(
            f"max-entries, by root mean square error over {profile.words()}; entries that are dropped, and how many of "
            "all keys stand out from zero:"
        )
        lines += [
            f"  {limit.max_entries:>6}  error {limit.total:.4f} = noise {limit.noise:.4f} and bias {limit.bias:.4f} "
            f"({100 * limit.dropped:.1f}% dropped, {limit.found:,} found)"
            for limit in limits[:6]
        ]
        if profile.exponent is not None and self.frequency is None:
            lines.append("The exponent is a guess: --frequency, the share of the most frequent key, fits it.")
        if self.profile is not None:
            lines.append("Counted in the table itself: no guarantee covers these numbers.")
        if not limits[0].found:
            lines.append(
                "No key would stand out from zero, whatever max-entries is: the largest share is "
                f"{profile.shares[0]:.2g}, the error {limits[0].total:.2g}. It takes more users, or a larger epsilon."
            )
        return limits
