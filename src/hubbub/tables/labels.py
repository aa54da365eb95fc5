"""A column of labels, chunk by chunk, into small integers: which of the different labels each row has.

Labels are numbered in sorted order, text by code points. What is kept of a row is 4 bytes; of every different label,
the label once. So one long label among millions of short ones costs its own length, and no more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hubbub.primitives.errors import Refused, optional

#: Rows of text that are looked up at a time, at least.
_LOOKUP = 1 << 21
#: A table of all numbers between the smallest and the largest label may have this many places per row.
_SPAN = 4

Codes = NDArray[np.int32]


@cache
def arrow_available() -> bool:
    """Whether pyarrow can be used (extra `lake`): one that is there may not go with this Python or NumPy."""
    try:
        optional("pyarrow", "lake")
    except Refused:
        return False
    return True


class Labels(Protocol):
    """Labels that are added chunk by chunk."""

    def add(self, chunk: Any) -> None:
        """The labels of the next rows."""

    def finish(self) -> tuple[Any, Codes]:
        """The different labels in sorted order (list or array), and which of them each row has; to be asked once."""


def text_labels() -> Labels:
    """For text, given as lists of str, or as Arrow arrays where there is Arrow."""
    return ArrowTexts() if arrow_available() else Texts()


class Texts:
    """Text in a dictionary."""

    def __init__(self) -> None:
        self._places: defaultdict[str, int] = defaultdict()
        self._places.default_factory = self._places.__len__  # a new label gets the next number
        self._codes: list[Codes] = []

    def add(self, chunk: list[str]) -> None:
        found = map(self._places.__getitem__, chunk)
        self._codes.append(np.fromiter(found, dtype=np.int32, count=len(chunk)))

    def finish(self) -> tuple[list[str], Codes]:
        labels = list(self._places)  # in the order of their numbers
        order = sorted(range(len(labels)), key=labels.__getitem__)
        ranks = _ranks(np.array(order, dtype=np.int64))
        return [labels[place] for place in order], _joined(self._codes, [ranks] * len(self._codes))


class ArrowTexts:
    """Text in Arrow's hash table.

    Rows are looked up together with all labels known so far, as soon as they are as many: so every row is hashed once,
    and labels no more than twice as often as rows.
    """

    def __init__(self) -> None:
        self._arrow = optional("pyarrow", "lake")
        self._kind = self._arrow.large_string()
        self._known = self._arrow.array([], self._kind)
        self._waiting: list[Any] = []
        self._codes: list[Codes] = []

    def add(self, chunk: Any) -> None:
        whole = isinstance(chunk, self._arrow.Array | self._arrow.ChunkedArray)
        texts = chunk.cast(self._kind) if whole else self._arrow.array(chunk, self._kind)
        self._waiting += texts.chunks if isinstance(texts, self._arrow.ChunkedArray) else [texts]
        if sum(map(len, self._waiting)) >= max(_LOOKUP, len(self._known)):
            self._look_up()

    def _look_up(self) -> None:
        before = len(self._known)
        rows = self._arrow.chunked_array([self._known, *self._waiting], self._kind)
        self._waiting = []
        found = rows.dictionary_encode().combine_chunks()
        self._known = found.dictionary
        self._codes.append(found.indices.to_numpy()[before:].astype(np.int32))

    def finish(self) -> tuple[Any, Codes]:
        self._look_up()
        order = optional("pyarrow.compute", "lake").sort_indices(self._known)
        ranks, labels = _ranks(order.to_numpy().astype(np.int64)), self._known.take(order)
        del self._known, order
        self._arrow.default_memory_pool().release_unused()
        return labels, _joined(self._codes, [ranks] * len(self._codes))


class Sortable:
    """Numbers, dates, or whatever else NumPy sorts; a TypeError if it does not."""

    def __init__(self) -> None:
        self._labels: list[NDArray[Any]] = []
        self._codes: list[Codes] = []

    def add(self, chunk: NDArray[Any]) -> None:
        labels, codes = np.unique(chunk, return_inverse=True)
        self._labels.append(labels)
        self._codes.append(codes.astype(np.int32))

    def finish(self) -> tuple[Any, Codes]:
        labels = np.unique(np.concatenate(self._labels))
        return labels, _joined(self._codes, [np.searchsorted(labels, own) for own in self._labels])


class Integers:
    """Whole numbers: a table of all numbers there could be, where it is short enough; otherwise sorted."""

    def __init__(self) -> None:
        self._chunks: list[NDArray[Any]] = []

    def add(self, chunk: NDArray[Any]) -> None:
        for kind in (np.int32, np.int64):
            if not len(chunk) or (np.iinfo(kind).min <= chunk.min() and chunk.max() <= np.iinfo(kind).max):
                chunk = chunk.astype(kind)
                break
        self._chunks.append(chunk)

    def finish(self) -> tuple[Any, Codes]:
        chunks, self._chunks = self._chunks, []
        least = min((int(chunk.min()) for chunk in chunks if len(chunk)), default=0)
        most = max((int(chunk.max()) for chunk in chunks if len(chunk)), default=0)
        span = most - least + 1
        if span > max(_SPAN * sum(map(len, chunks)), _LOOKUP) or most >= 1 << 63:
            sortable = Sortable()
            for chunk in chunks:
                sortable.add(chunk.astype(np.uint64 if most >= 1 << 63 else np.int64))
            return sortable.finish()
        here = np.zeros(span, dtype=np.bool_)
        for chunk in chunks:
            here[chunk - np.int64(least)] = True
        places = np.cumsum(here, dtype=np.int32) - np.int32(1)
        for number, chunk in enumerate(chunks):
            chunks[number] = places[chunk - np.int64(least)]
        return np.flatnonzero(here) + least, _joined(chunks, [])


def _ranks(order: NDArray[np.int64]) -> Codes:
    """The place of each label in sorted order, from the order that sorts them."""
    ranks = np.empty(len(order), dtype=np.int32)
    ranks[order] = np.arange(len(order), dtype=np.int32)
    return ranks


def _joined(codes: list[Codes], ranks: Sequence[NDArray[Any]]) -> Codes:
    """All chunks in one, each with its labels renumbered; the chunks are given up on the way."""
    for number, own in enumerate(ranks):
        codes[number] = own[codes[number]].astype(np.int32, copy=False)
    whole = np.concatenate([np.zeros(0, dtype=np.int32), *codes])
    codes.clear()
    return whole
