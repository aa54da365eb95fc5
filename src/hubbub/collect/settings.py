"""What whoever runs a service may set: in a file, or in the environment.

    # settings.toml
    largest_body = 4194304

A setting has its default, unless the file names it, unless the environment does: HUBBUB_LARGEST_BODY=4194304. All of
them are read once, at the start.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from hubbub.primitives.envelope import read_file
from hubbub.primitives.errors import Refused

#: Where a setting comes from.
Source = Literal["default", "file", "environment"]
_PREFIX = "HUBBUB_"


def _set(default: Any, words: str) -> Any:
    """A setting and what it means."""
    return field(default=default, metadata={"words": words})


@dataclass(frozen=True)
class Settings:
    """Limits that keep one process well, whatever is sent to it."""

    largest_body: int = _set(8 << 20, "Largest body of an upload, in bytes.")
    most_reports: int = _set(200_000, "Most reports in one batch or crowd.")
    queue: int = _set(
        2000, "Batches that may wait for the store; beyond that, senders are asked to come later."
    )
    memory: int = _set(256 << 20, "Bytes of uploads that may be held in memory at a time.")
    memory_per_token: int = _set(128 << 20, "The same for uploads with one token.")
    uploads_per_token: int = _set(512, "Uploads with one token that may be under way at a time.")
    patience: float = _set(30.0, "Seconds that the store may take for a batch.")
    body_grace: float = _set(15.0, "Seconds before a body has to keep its pace.")
    slowest_body: int = _set(32 << 10, "Bytes of a body that must come in each second from then on.")
    header_seconds: float = _set(10.0, "Seconds that a connection may take for the head of a request.")
    idle_seconds: float = _set(75.0, "Seconds that a connection may be idle between requests.")
    stall_seconds: float = _set(60.0, "Seconds that a client may leave an answer unread.")
    connections: int = _set(4096, "Connections at a time; fewer if the system allows fewer files.")
    origins: tuple[str, ...] = _set(
        (),
        "Addresses like https://stats.example whose login form is taken, besides the one that was asked for.",
    )
    fold_every: float = _set(1.0, "Seconds between folds in the background.")
    check_every: float = _set(3600.0, "Seconds between looks at every page of a SQLite store.")


def load_settings(file: Path | None, environment: Mapping[str, str]) -> tuple[Settings, dict[str, Source]]:
    """The settings, and where each comes from."""
    kinds = {each.name: type(each.default) for each in fields(Settings)}
    given = {} if file is None else _from_file(file, set(kinds))
    sources: dict[str, Source] = dict.fromkeys(kinds, "default")
    found: dict[str, Any] = {}
    for name, kind in kinds.items():
        variable = _PREFIX + name.upper()
        if variable in environment:
            found[name] = _checked(variable, kind, _spelled(kind, environment[variable]))
            sources[name] = "environment"
        elif name in given:
            found[name] = _checked(f"{name} in {file}", kind, given[name])
            sources[name] = "file"
    return Settings(**found), sources


def described(settings: Settings, sources: Mapping[str, Source]) -> list[dict[str, Any]]:
    """Every setting: name, value, where it comes from, its default, its variable and its meaning."""
    return [
        {
            "name": each.name,
            "value": getattr(settings, each.name),
            "source": sources[each.name],
            "default": each.default,
            "variable": _PREFIX + each.name.upper(),
            "words": each.metadata.get("words", ""),
        }
        for each in fields(Settings)
    ]


def as_file(settings: Settings, sources: Mapping[str, Source]) -> str:
    """The same as a file that `load_settings` reads."""
    lines = [
        "# All of these are read at the start: a change needs a restart, of every process. Tokens and keys are",
        "# in the store, and take effect within two seconds without one.",
    ]
    for row in described(settings, sources):
        origin = "" if row["source"] == "default" else f"; this is from the {row['source']}"
        lines += [
            "",
            f"# {row['words']}",
            f"# {row['variable']}, default {_toml(row['default'])}{origin}.",
            f"{row['name']} = {_toml(row['value'])}",
        ]
    return "\n".join(lines) + "\n"


def _from_file(path: Path, known: set[str]) -> dict[str, Any]:
    try:
        found = tomllib.loads(read_file(path).decode())
    except ValueError as problem:  # also bytes that are no text
        raise Refused(f"{path} is not a file of settings: {str(problem).splitlines()[0]}.") from None
    strange = sorted(set(found) - known)
    if strange:
        raise Refused(f"{path} sets {strange[0]!r}, which there is not; see hubbub serve --show-settings.")
    return found


def _spelled(kind: type, text: str) -> Any:
    """What a variable says; the text itself if it is no number."""
    if kind is tuple:
        return text.split()
    try:
        return kind(text)
    except ValueError:
        return text


def _checked(where: str, kind: type, value: Any) -> Any:
    """A value of the right kind, or a sentence that says where it is wrong."""
    if kind is tuple:
        if not isinstance(value, list) or not all(isinstance(each, str) and each.strip() for each in value):
            raise Refused(f"{where} must be a list of addresses, not {value!r}.")
        return tuple(each.rstrip("/") for each in value)
    allowed = (int,) if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, allowed) or not 0 < value < math.inf:
        number = "a whole number" if kind is int else "a number"
        raise Refused(f"{where} must be {number} above 0, not {value!r}.")
    return kind(value)


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{each}"' for each in value) + "]"
    return str(value)
