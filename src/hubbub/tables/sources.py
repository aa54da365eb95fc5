"""Where a table of text comes from and how it is written: a file, a compressed file, or standard input.

Every command that reads a table reads it through this, so that endings, delimiters, encodings and what is said about
them are the same everywhere.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hubbub.primitives.errors import Refused

#: Endings of tables of text, and what is between their columns.
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
#: Delimiters that have a name, because they cannot be seen or typed.
_NAMED = {"tab": "\t", r"\t": "\t"}
_LINE_END = re.compile("\r\n|\r|\n")
#: Names of columns that are listed when one is missing.
_LISTED = 20


@dataclass(frozen=True)
class TextForm:
    """How a table of text is written. Left out: the delimiter that its name says, and UTF-8."""

    delimiter: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.delimiter is not None:
            letter = _NAMED.get(self.delimiter, self.delimiter)
            if len(letter) != 1 or letter in '"\r\n':
                raise Refused(f"A delimiter is one character, or tab (--delimiter), not {self.delimiter!r}.")
            object.__setattr__(self, "delimiter", letter)
        if self.encoding is not None:
            try:
                io.TextIOWrapper(io.BytesIO(), self.encoding)
            except (LookupError, ValueError):
                raise Refused(
                    f"There is no text encoding called {self.encoding!r} (--encoding); known are utf-8, cp1252, "
                    "utf-16 and many others."
                ) from None


#: What a name says, in UTF-8.
PLAIN = TextForm()


@dataclass(frozen=True)
class Source:
    """A table of text: a .csv or .tsv file, also compressed (.gz), or standard input, which is called `-`."""

    path: Path
    form: TextForm = PLAIN

    @classmethod
    def of(cls, table: str | Path | Source) -> Source:
        """A path as a source; a source as it is."""
        return table if isinstance(table, Source) else cls(Path(table))

    def __str__(self) -> str:
        return "standard input" if self.piped else str(self.path)

    @property
    def piped(self) -> bool:
        """Whether this is standard input."""
        return str(self.path) == "-"

    @property
    def compressed(self) -> bool:
        """Whether the file's name says that it is compressed."""
        return self.path.suffix.lower() == ".gz"

    @property
    def ending(self) -> str:
        """The ending that says what a file is, without that of a compressed one; standard input is CSV."""
        name = self.path.with_suffix("") if self.compressed else self.path
        return ".csv" if self.piped else name.suffix.lower()

    @property
    def stem(self) -> str:
        """The table's name without its endings."""
        name = self.path.with_suffix("") if self.compressed else self.path
        return "table" if self.piped else name.stem

    @property
    def size(self) -> int | None:
        """How many bytes will be read, where that is known."""
        return None if self.piped or self.compressed or not self.path.is_file() else self.path.stat().st_size

    @property
    def is_text(self) -> bool:
        """Whether this is a table of text by its name."""
        return self.ending in _DELIMITERS

    @property
    def delimiter(self) -> str:
        """What is between columns."""
        return self.form.delimiter or _DELIMITERS.get(self.ending, ",")

    @property
    def encoding(self) -> str:
        """UTF-8 unless something else was said."""
        return self.form.encoding or "UTF-8"

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """The bytes, from the beginning; what cannot be read is refused."""
        try:
            if self.piped:
                yield sys.stdin.buffer
            elif self.compressed:
                with gzip.open(self.path, "rb") as unpacked:
                    yield unpacked  # type: ignore[misc]
            else:
                with self.path.open("rb") as file:
                    yield file
        except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
            raise Refused(f"{self} is not a readable gzip file: {problem}.") from None
        except FileNotFoundError:
            raise Refused(f"{self} does not exist.") from None
        except OSError as problem:
            raise Refused(f"{self} cannot be read: {problem.strerror or problem}.") from None

    def rows(self, file: BinaryIO, begun: bool = False, before: int = 0) -> Iterator[tuple[int, list[str]]]:
        """Rows of cells, each with the number of its last line, as Python's csv module reads them.

        `begun` says that a mark of the encoding is behind us, `before` how many lines are.
        """
        encoding = self.encoding
        if encoding.lower().replace("_", "-") in ("utf-8", "utf8"):
            encoding = "utf-8" if begun else "utf-8-sig"
        text = io.TextIOWrapper(file, encoding, newline="")
        over = False

        def lines() -> Iterator[str]:
            nonlocal over
            for line in text:  # noqa: UP028 - `yield from` would close the file with the generator
                yield line
            over = True
            yield "\0"  # one row more, unless a quote is open: the csv module would close it without a word

        reader, begin = csv.reader(lines(), delimiter=self.delimiter), before + 1
        try:
            for row in reader:
                if over and row != ["\0"]:
                    raise Refused(
                        f"{self}, line {begin}: a quote is opened in this row and never closed; double it, or close it."
                    )
                if over:
                    return
                yield before + reader.line_num, row
                begin = before + reader.line_num + 1
        except UnicodeDecodeError as problem:
            # All lines before the ones that are decoded now have been read.
            decoded = problem.object[: problem.start].decode(problem.encoding, "replace")
            line = before + reader.line_num + 1 + len(_LINE_END.findall(decoded))
            raise self._undecodable(line) from None
        except UnicodeError:
            raise self._undecodable(before + reader.line_num + 1) from None
        except csv.Error as problem:
            said = str(problem)
            if "field limit" in said:
                most = csv.field_size_limit()
                said = f"a field has more than {most:,} characters: close its quote, or name the --delimiter"
            raise Refused(f"{self}, line {before + reader.line_num}: {said}.") from None
        finally:
            if not file.closed:
                text.detach()  # or the file would be closed with it

    def _undecodable(self, line: int) -> Refused:
        return Refused(
            f"{self}, line {line}: this is not {self.encoding} text; say what it is with --encoding, for instance "
            f"--encoding {'utf-8' if self.form.encoding else 'cp1252'}."
        )


def find_column(where: Any, header: Sequence[str], name: str) -> int:
    """The place of a column, of which there must be one; `where` is a source, or what a table is called."""
    if header.count(name) == 1:
        return header.index(name)
    many = f" and {len(header) - _LISTED:,} more" if len(header) > _LISTED else ""
    listed = ", ".join(header[:_LISTED]) + many
    if name in header:
        raise Refused(f"{where} has more than one column {name!r}; its columns are {listed}.")
    hint = ""
    if isinstance(where, Source) and where.is_text and len(header) == 1:
        other = _other_delimiter(header[0], where.delimiter)
        hint = f" If {other} is between its columns, say so with --delimiter." if other else ""
    raise Refused(f"{where} has no column {name!r}; its columns are {listed or 'none'}.{hint}")


def _other_delimiter(header: str, delimiter: str) -> str | None:
    """What may be between the columns of a header that seems to have but one."""
    names = {";": "a semicolon", "\t": "a tab", "|": "a bar", ",": "a comma"}
    return next((words for letter, words in names.items() if letter != delimiter and letter in header), None)
