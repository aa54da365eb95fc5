"""The one exception type for input that hubbub refuses."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError


class Refused(ValueError):
    """Input, file or parameter that hubbub will not work with.

    The message is one sentence that says what is wrong and what to do about it.
    The command line prints it and exits with code 1; nothing has been written.
    """


class BudgetSpent(Refused):
    """A device was asked for a fresh report that its privacy budget does not allow."""


def optional(module: str, extra: str = "") -> Any:
    """Import a module that comes with an extra, or by itself, or say how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.split(".")[0]
        what = f"'hubbub[{extra}]'" if extra else package
        raise Refused(f"This needs {package}: pip install {what}.") from None


def explain(problem: ValidationError) -> str:
    """The first complaint of a validation as a sentence."""
    first = problem.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if not str(part).startswith("function"))
    message = str(first["msg"]).removeprefix("Value error, ").removesuffix(".")
    given = f" (given: {first['input']!r})" if where and first["type"] != "missing" else ""
    if len(given) > 80:
        given = ""
    return f"{where + ': ' if where else ''}{message}{given}."
