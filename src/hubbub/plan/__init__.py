"""Which mechanism, with what error and what bytes, and the inverse questions.

`hubbub.plan` is this package, and it can be called: `hubbub.plan(keys=1000, max_entries=8)` is
`hubbub.plan.overview.plan`, see there.
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hubbub.plan.overview import Plan


class _Callable(ModuleType):
    """A package that answers when it is called: the public function and the package have the same name."""

    def __call__(self, *arguments: Any, **options: Any) -> Plan:
        from hubbub.plan.overview import plan

        return plan(*arguments, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        """What editors and notebooks show."""
        from hubbub.plan.overview import plan

        return inspect.signature(plan)


sys.modules[__name__].__class__ = _Callable
