"""What commands share: examples in the help, files, --json, progress bars, words on the terminal."""

from __future__ import annotations

import difflib
import functools
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hubbub.primitives.errors import Refused, optional

if TYPE_CHECKING:
    from hubbub.collect.store import Store

# Commands


class Command(click.Command):
    """A command whose help ends with an example, which the tests run as it stands there."""

    def __init__(self, *arguments: Any, example: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.example = example

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Example"):
            for line in textwrap.dedent(self.example).strip().splitlines():
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class Group(click.Group):
    """Commands below a command; one that is mistyped is answered with those that are like it."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if not ctx.resilient_parsing and args[0] not in known and not args[0].startswith("-"):
            like = difflib.get_close_matches(args[0], known, n=1, cutoff=0.5)
            hint = f" Did you mean {like[0]}?" if like else ""
            ctx.fail(f"There is no command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)


# Files


class _FileName(click.Path):
    """A file that is read or written. A folder is refused like a file that is not there, with exit code 1."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(value)
        if path.is_dir():
            raise Refused(f"{path} is a folder, not a file.")
        return path


class _TableName(_FileName):
    """A file that estimates are written to. One whose name says nothing else is refused before any work."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        from hubbub.server.columns import table_kind

        path = super().convert(value, param, ctx)
        table_kind(path)
        return path


class _FolderName(click.Path):
    """A folder, which need not be there yet."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(value)
        if path.exists() and not path.is_dir():
            raise Refused(f"{path} is a file, not a folder.")
        return path


def check_not_over(output: Path, source: Path) -> None:
    """Refuse to write a result over what it is made from."""
    if output.exists() and source.exists() and output.samefile(source):
        raise Refused(f"{output} is the table itself: write to another file.")


EXISTING = OUTPUT = _FileName()
ESTIMATES = _TableName()
FOLDER = _FolderName(file_okay=False)


# Options


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
verbose_option = click.option(
    "--verbose", is_flag=True, help="Show all parameters of the mechanism, also those nobody has to set."
)


store_option = click.option(
    "--store",
    default="sqlite:///hubbub.db",
    show_default=True,
    envvar="HUBBUB_STORE",
    show_envvar=True,
    help="The store of the service.",
)


@contextmanager
def opened_store(url: str) -> Iterator[Store]:
    """The store of a service, which must be there."""
    optional("fastapi", "serve")
    from hubbub.collect.store import Store

    with closing(Store(url, create=False)) as store:
        yield store


settings_option = click.option(
    "--settings",
    type=EXISTING,
    envvar="HUBBUB_SETTINGS",
    show_envvar=True,
    help="A TOML file with limits and timeouts; hubbub serve --show-settings lists them.",
)


interval_option = click.option(
    "--interval",
    type=float,
    default=0.95,
    show_default=True,
    help="Level of the intervals, and of what stands out: with a lower one keys do so from smaller values on, and more "
    "often by chance.",
)


def table_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how a table of text is written; the command gets them as `form`."""

    @click.option(
        "--delimiter",
        help="What is between the columns of a table of text: one character, or tab "
        "[default: a comma; in .tsv files a tab].",
    )
    @click.option("--encoding", help="Encoding of a table of text [default: utf-8].")
    @functools.wraps(function)
    def with_form(*, delimiter: str | None, encoding: str | None, **options: Any) -> Any:
        from hubbub.tables.sources import TextForm

        return function(form=TextForm(delimiter, encoding), **options)

    return with_form


# Words


def say(as_json: bool, data: dict[str, Any], text: str | Callable[[], None]) -> None:
    """Print `data` for machines or `text` for people."""
    if as_json:
        click.echo(json.dumps(data, default=str))
    elif callable(text):
        text()
    else:
        tell(text)


def tell(text: str, err: bool = False) -> None:
    """Print text for people: lines wider than the terminal are broken between words.

    What continues a line with a label ("guarantee  ...") or an indented one begins below its beginning.
    """
    width = max(40, shutil.get_terminal_size().columns)
    for line in text.split("\n"):
        start = re.match(r" *[\w-]+ {2,}| *", line)
        indent = start.end() if start else 0
        if len(line) > width:
            line = textwrap.fill(
                line,
                width,
                subsequent_indent=" " * (indent if indent < width // 2 else 0),
                break_long_words=False,
                break_on_hyphens=False,
            )
        click.echo(line, err=err)


def show_cells(rows: Sequence[Sequence[str]]) -> None:
    """A table of text cells, heads first."""
    from rich.console import Console
    from rich.table import Table

    table = Table(show_edge=False, pad_edge=False)
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows[1:]:
        table.add_row(*row)
    Console().print(table)


@contextmanager
def progress(what: str, total: int | None, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr; silent with --json or when nobody watches. None: nobody knows how much there is."""
    if quiet or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        job = bar.add_task(what, total=total)
        yield lambda done: bar.advance(job, done)


@contextmanager
def steps_shown(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Progress of work in several steps, one bar after another: show(step, more, total)."""
    with ExitStack() as stack:
        bars: dict[str, Any] = {}

        def show(step: str, more: int, total: int) -> None:
            if step not in bars:
                stack.close()
                bars[step] = stack.enter_context(progress(step, total, quiet))
            bars[step](more)

        yield show
