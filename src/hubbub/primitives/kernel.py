"""One source for two speeds: kernels run interpreted, or compiled with numba when it is there.

A kernel is a plain Python function over scalars, arrays and a *tape* (where its coin flips come
from). Interpreted, the tape is a `Coins` object, and exact enumeration can hand in its own;
compiled, the tape is a buffer of random words. Because both run the same lines, a privacy proof by
enumeration of the interpreted kernel is a proof for the bulk path as well.

Numba is an optional extra and is imported only when a large batch asks for it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import types
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

#: Batches below this size are interpreted: starting the compiler costs more than it saves.
BULK = 4096


@cache
def numba_available() -> bool:
    """Whether batches can be compiled (extra `fast`; switched off by HUBBUB_NO_NUMBA=1)."""
    return os.environ.get("HUBBUB_NO_NUMBA") != "1" and importlib.util.find_spec("numba") is not None


class Kernel:
    """A function that can be called as it is, or compiled once on demand."""

    def __init__(
        self, function: Callable[..., Any], native: Callable[[], Any] | None = None, inline: bool = False
    ) -> None:
        self.function = function
        self._native = native
        self._inline = inline
        self._compiled: dict[tuple[type, ...], Any] = {}
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def compiled(self, *bundles: type) -> Any:
        """The numba dispatcher, for arguments that are named tuples of these types.

        Kernels called by this one are compiled in its place.
        """
        if bundles not in self._compiled:
            self._compiled[bundles] = self._native() if self._native else self._compile(bundles)
        return self._compiled[bundles]

    def fingerprint(self, bundles: tuple[type, ...] = ()) -> str:
        """A digest of all that compiled code depends on, so that what the cache holds is never stale.

        That is this kernel, its constants, all it calls, and the order of the fields of its named tuples: compiled code
        knows fields by their place.
        """
        source = self._source()
        digest = hashlib.sha256(_code_bytes(source.__code__))
        for name in source.__code__.co_names:
            constant = source.__globals__.get(name)
            if isinstance(constant, int | float | np.number):
                digest.update(f"{name}={constant!r};".encode())
            if isinstance(constant, type) and hasattr(constant, "_fields"):
                bundles += (constant,)
        for bundle in bundles:
            digest.update(f"{bundle.__qualname__}{getattr(bundle, '_fields', '')};".encode())
        for callee in self._callees().values():
            digest.update(callee.fingerprint().encode())
        return digest.hexdigest()[:12]

    def _source(self) -> Callable[..., Any]:
        return self._native or self.function

    def _callees(self) -> dict[str, Kernel]:
        source = self._source()
        scope = source.__globals__
        return {n: scope[n] for n in source.__code__.co_names if isinstance(scope.get(n), Kernel)}

    def _compile(self, bundles: tuple[type, ...]) -> Any:
        import numba

        scope = dict(self.function.__globals__)
        scope.update({name: callee.compiled() for name, callee in self._callees().items()})
        twin = types.FunctionType(self.function.__code__, scope, self.function.__name__)
        twin.__qualname__ = f"{self.function.__qualname__}_{self.fingerprint(bundles)}"
        twin.__module__ = self.function.__module__
        if self._inline:  # into its caller, which is cached
            return numba.njit(nogil=True, inline="always")(twin)
        try:
            dispatcher = numba.njit(nogil=True, cache=True)(twin)
        except RuntimeError:  # typed into an interpreter: there is no file to keep the cache beside
            return numba.njit(nogil=True)(twin)
        _forgive(dispatcher)
        return dispatcher


def _forgive(dispatcher: Any) -> None:
    """Do without a cache that cannot be read or written: damaged files, types of another version, a full disk."""
    files = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    for name, nothing in (("_load_index", {}), ("load", None), ("save", None)):
        use = getattr(files, name, None)
        if use is None:  # where numba is switched off, there is nothing to keep
            return

        def forgiving(*given: Any, use: Any = use, nothing: Any = nothing) -> Any:
            try:
                return use(*given)
            except Exception:
                return nothing

        setattr(files, name, forgiving)


def _code_bytes(code: types.CodeType) -> bytes:
    constants = (
        _code_bytes(c) if isinstance(c, types.CodeType) else repr(c).encode() for c in code.co_consts
    )
    return b"|".join([code.co_code, repr(code.co_names).encode(), *constants])


def kernel(function: Callable[..., Any]) -> Kernel:
    """Mark a function as a kernel whose compiled form comes from the same source."""
    return Kernel(function)


def primitive(native: Callable[[], Any]) -> Callable[[Callable[..., Any]], Kernel]:
    """Mark a function as a kernel whose compiled form `native()` builds itself."""
    return lambda function: Kernel(function, native)


def use_compiled(size: int) -> bool:
    """Whether a batch of this size should run compiled."""
    return size >= BULK and numba_available()


def _native_parity() -> Any:
    import numba
    from numba.core import types as nbt
    from numba.extending import intrinsic

    @intrinsic
    def popcount(context: Any, x: Any) -> Any:
        def generate(_: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.ctpop(args[0])

        return nbt.uint64(nbt.uint64), generate

    @numba.njit(nogil=True)
    def parity(x: Any) -> Any:
        return nbt.int64(popcount(nbt.uint64(x)) & nbt.uint64(1))

    return parity


@primitive(_native_parity)
def parity(x: int) -> int:
    """popcount(x) mod 2, the exponent of a Walsh character."""
    return int(x).bit_count() & 1


@kernel
def nth_other(n: int, taken: Any, count: int) -> int:
    """The n-th number (from 0) that is not among the first `count` of `taken`, which are all different.

    It is the least x with x = n + (how many of them are at most x), found from below.
    """
    place, last = n, -1
    while place != last:
        last = place
        place = n
        for j in range(count):
            if taken[j] <= last:
                place += 1
    return place
