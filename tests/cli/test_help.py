"""The first ten minutes on the command line: help, examples, mistakes, endings of a command, and 80 columns."""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from helpers import prose, real_command, refuse, run_cli, strict_json, succeed, write_csv
from hubbub.cli import main
from hubbub.simulation.populations import zipf_population

PAGES = ["home", "search", "help", "cart"]


def commands() -> Iterator[list[str]]:
    """All commands, and those below them."""
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        if isinstance(command, click.Group):
            yield from ([name, below] for below in command.list_commands(context))
        else:
            yield [name]


COMMANDS = list(commands())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the examples are about: tables, a task, its files, a release and a store."""
    from hubbub.collect.keyring import KeyRing
    from hubbub.collect.store import Store
    from hubbub.collect.tokens import Tokens
    from hubbub.device.ledger import Ledger
    from hubbub.protocol.task import Task

    folder = tmp_path_factory.mktemp("examples")
    crowd = zipf_population(200, len(PAGES), seed=1, entries=2.0).entries
    owners = [user for user in range(200) for _ in range(crowd.offsets[user], crowd.offsets[user + 1])]
    rows = [(f"user {user}", PAGES[key], key) for user, key in zip(owners, crowd.ids.tolist(), strict=True)]
    write_csv(folder / "visits.csv", [("user", "page", "minutes"), *rows])
    write_csv(folder / "counts.csv", [("word", "count"), ("apple", 900), ("pear", 40), ("plum", 7)])
    (folder / "pages.txt").write_text("\n".join(PAGES))
    names = {
        "visits": folder / "visits.reports",
        "monday": folder / "1.reports",
        "tuesday": folder / "2.reports",
    }
    task = folder / "task.toml"
    options = ["--epsilon", 1, "--max-entries", 4, "--mechanism", "collision", "-o", task]
    succeed("task", "new", "--name", "visits", "--vocabulary", folder / "pages.txt", *options)
    succeed(
        "plan",
        "--discover",
        "--alphabet",
        "a-z",
        "--epsilon",
        8,
        "--max-entries",
        4,
        "-o",
        folder / "words.toml",
    )
    words = [
        folder / "visits.csv",
        folder / "words.toml",
        "--user",
        "user",
        "--key",
        "page",
        "-o",
        folder / "w.reports",
    ]
    succeed("privatize", *words)
    succeed("aggregate", folder / "w.reports", "-o", folder / "words.state")
    for name, reports in names.items():
        succeed("privatize", folder / "visits.csv", task, "--user", "user", "--key", "page", "-o", reports)
        succeed("aggregate", reports, "-o", folder / f"{name}.state")
    counts = ("--key", "word", "--count", "count", "--epsilon", 1, "--max-nonzero", 9, "--max-sum", 2000)
    assert run_cli("release", folder / "counts.csv", *counts, "-o", folder / "counts.hub").exit_code == 0
    Ledger(folder / "ledger.json").report(Task.load(task), {"home"})
    store = Store(f"sqlite:///{folder / 'hubbub.db'}")
    Tokens(store).new("upload", "phones")
    KeyRing(store)
    store.close()
    assert run_cli(
        "store", "backup", folder / "monday.backup", "--store", f"sqlite:///{folder / 'hubbub.db'}"
    )
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them, as the present folder, on a terminal of 80 columns."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("HUBBUB_STORE", "HUBBUB_SETTINGS", "HUBBUB_FIRST_TOKENS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


# Help


@pytest.mark.parametrize("command", ["run", "estimate", "simulate"])
def test_where_the_level_is_chosen_it_says_what_else_it_decides(command: str) -> None:
    assert "Level of the intervals, and of what stands out" in prose(command, "--help")


def test_help_groups_all_commands_and_cuts_nothing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = run_cli("--help").stdout
    headings = re.findall(r"^(\w.*):$", text, flags=re.MULTILINE)
    assert headings == [
        "Options",
        "Learn what it does",
        "Collect in the local model",
        "Plan and check",
        "Publish in the central model",
        "Run a service",
    ]
    listed = re.findall(r"^  (\w+) +[A-Z].*[^.]\.$", text.partition("Learn what")[2], flags=re.MULTILINE)
    assert sorted(listed) == main.list_commands(click.Context(main))
    assert "..." not in text.partition("Learn what")[2]
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_explains_every_option_and_fits(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = run_cli(*command, "--help").stdout
    assert max(map(len, text.splitlines())) <= 80
    found: Any = main
    for name in command:
        found = found.get_command(click.Context(main), name)
    assert [
        option.name for option in found.params if isinstance(option, click.Option) and not option.help
    ] == []


def example_of(command: list[str]) -> list[str]:
    """The words of the example in a command's help."""
    text = run_cli(*command, "--help").stdout
    assert text.count("\nExample:\n") == 1
    lines = text.partition("\nExample:\n")[2].replace("\\\n", " ")
    [line] = lines.strip().splitlines()
    words = shlex.split(line)
    assert words[: len(command) + 1] == ["hubbub", *command]
    return words[1:]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_example_runs_as_it_stands_in_the_help(command: list[str], folder: Path) -> None:
    """And what it prints fits into 80 columns, but for what cannot be broken: keys, tokens, names of files."""
    words = example_of(command)
    if command in (["serve"], ["shuffler"]):
        printed = until_it_listens(words, folder)
    else:
        if command == ["key", "retire"]:
            [old] = succeed("key", "list", "--store", "sqlite:///hubbub.db")["keys"]
            succeed("key", "new", "--store", "sqlite:///hubbub.db")
            words[words.index("KEY")] = old["id"]
        result = run_cli(*words)
        assert result.exit_code == 0, result.output
        printed = result.stdout
    assert printed.strip()
    for line in printed.splitlines():
        assert len(line) <= 80 or " " not in line.strip(), line


def until_it_listens(words: list[str], folder: Path) -> str:
    """What a service prints until it is there; then it is interrupted, and ends in good order."""
    running = subprocess.Popen(
        [sys.executable, "-m", "hubbub", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    printed = ""
    try:
        while "http://127.0.0.1" not in printed:
            line = running.stdout.readline()
            assert line, f"{printed}{running.stderr.read() if running.stderr else ''}"
            printed += line
        address = re.search(r"http://127.0.0.1:\d+", printed)
        assert address is not None
        until_it_answers(address[0])
    finally:
        running.send_signal(signal.SIGINT)
        rest, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    return printed + rest


def until_it_answers(address: str) -> None:
    """Wait until a service answers at all."""
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{address}/nowhere", timeout=5)
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"nobody answers at {address}")


@pytest.mark.parametrize(
    "words",
    [
        "plan --keys 300 --range 0:10 --estimate conditional",
        "plan --keys 300 --entries lengths.csv --frequency 0.2",
        "plan --keys 300 --model shuffled --delta 1e-6 --bytes 4",
        "run visits.csv --user user --key page --value minutes --range 0:4 --epsilon 2 --max-entries 2 --simultaneous",
        "amplify --compare --max-entries 4 --reports 1000",
        "amplify --mechanism collision --epsilon 1 --max-entries 4 --reports 10000 --rounds 3 --method basic",
        "task new --name x --open 20 --epsilon 1 --max-entries 4 --period day --verbose -o x.toml",
        "estimate visits.state --simultaneous",
        "inspect task.toml --verbose",
        "inspect counts.hub",
        "query counts.hub apple --estimator mean",
        "serve --show-settings",
        "demo --users 1000 --keys 100 --verbose",
    ],
)
def test_more_output_fits(words: str, folder: Path) -> None:
    write_csv(folder / "lengths.csv", [("entries", "users"), (1, 500), (4, 200), (9, 10)])
    result = run_cli(*words.split())
    assert result.exit_code == 0, result.output
    assert [line for line in result.stdout.splitlines() if len(line) > 80] == []
    assert "…" not in result.stdout


# Mistakes


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("estimat", "Did you mean estimate?"),
        ("privatise", "Did you mean privatize?"),
        ("token nwe", "Did you mean new?"),
        ("plan --max-entires 3", "--max-entries"),
        ("zzzz", "There is no command 'zzzz'.\n"),
    ],
)
def test_what_is_mistyped(words: str, hint: str) -> None:
    result = run_cli(*words.split())
    assert result.exit_code == 2
    assert hint in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    "words", ["run --json t.csv", "--json", "plan --keys x --json", "nonsense --json", "task new --json"]
)
def test_wrong_usage_is_said_in_json_too(words: str) -> None:
    result = run_cli(*words.split())
    assert result.exit_code == 2
    said = strict_json(result.stdout)
    assert list(said) == ["error"]
    assert said["error"] in result.stderr


def test_a_folder_is_refused_like_a_missing_file(folder: Path) -> None:
    """Wherever a file is read or written."""
    (folder / "there").mkdir()
    columns = "--user user --key page --epsilon 1 --max-entries 2"
    for words in (
        f"run {{}} {columns}",
        f"run visits.csv --vocabulary {{}} {columns}",
        "estimate {}",
        "inspect {}",
        "audit {}",
        "query {} a",
        "query counts.hub --keys-from {}",
        "plan --entries {}",
        "release {} --key word --count count --epsilon 1 -o x.hub",
        "privatize visits.csv {} --user user --key page -o x.reports",
        "store restore {} --store sqlite:///x.db",
        "serve task.toml --settings {}",
    ):
        assert "there is a folder, not a file" in refuse(*words.format("there").split())
        refuse(*words.format("missing").split())
    for words in ("merge visits.state -o {}", f"run visits.csv {columns} -o {{}}", "task new --name x -o {}"):
        assert "there is a folder, not a file" in refuse(*words.format("there").split())
    for words in ("reproduce --data {}", "demo -o {}"):
        assert "task.toml is a file, not a folder" in refuse(*words.format("task.toml").split())
    assert "missing does not exist" in refuse("reproduce", "wang-fig2", "--data", "missing")


# Ends


def test_an_interrupted_command_ends_with_130(folder: Path) -> None:
    """Ctrl-C while it waits for its input; nothing is written."""
    command = [sys.executable, "-m", "hubbub", "privatize", "-", "task.toml", "--json"]
    running = subprocess.Popen(
        [*command, "--user", "user", "--key", "page", "-o", "x.reports"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdin is not None
    # More than a pipe holds: when all is written, the command is reading.
    running.stdin.write("user,page\n" + "somebody,home\n" * 20_000)
    running.stdin.flush()
    running.send_signal(signal.SIGINT)
    said, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert strict_json(said) == {"error": "Interrupted."}
    assert errors.strip() == "hubbub: Interrupted."
    assert not (folder / "x.reports").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script(shell: str) -> None:
    """As the guide says."""
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("there is no bash to ask for its version")
    done = real_command(env={**os.environ, "_HUBBUB_COMPLETE": f"{shell}_source"})
    assert done.returncode == 0
    assert "_HUBBUB_COMPLETE" in done.stdout
    assert f"{shell}_complete" in done.stdout


def test_completion_completes() -> None:
    words = {"_HUBBUB_COMPLETE": "bash_complete", "COMP_WORDS": "hubbub est", "COMP_CWORD": "1"}
    assert real_command(env={**os.environ, **words}).stdout.split() == ["plain,estimate"]


# What is said


def test_keys_means_one_thing() -> None:
    """How many keys there are, wherever there is such an option."""
    having = []
    for command in COMMANDS:
        found: Any = main
        for name in command:
            found = found.get_command(click.Context(main), name)
        for option in found.params:
            if "--keys" in option.opts:
                having.append(" ".join(command))
                assert option.help.startswith("How many keys there are")
                assert isinstance(option.type, click.types.IntParamType)
    assert having == ["demo", "plan", "simulate", "task new"]


def test_lists_that_are_cut_say_how_long_they_are(folder: Path) -> None:
    columns = ["--user", "user", "--key", "page"]
    for words in (
        ["estimate", "visits.state"],
        ["run", "visits.csv", *columns, "--epsilon", 1, "--max-entries", 2],
        ["simulate", "task.toml", "--like", "visits.csv", *columns],
    ):
        for top, shown in ((1, 1), (9, 4)):
            said = succeed(*words, "--top", top)
            assert (len(said["estimates"]), said["shown"], said["total"]) == (shown, shown, 4)
    said = succeed("demo", "--users", 1000, "--keys", 100)
    assert (len(said["top"]), said["shown"], said["total"]) == (20, 20, 100)


def test_the_plan_says_what_it_assumes(folder: Path) -> None:
    assert succeed("plan")["assumed"] == {"keys": 1000, "max_entries": 32}
    assert succeed("plan", "--keys", 7)["assumed"] == {"max_entries": 32}
    assert succeed("plan", "--vocabulary", "pages.txt", "--max-entries", 2)["assumed"] == {}
    text = prose("plan", "--max-entries", 2)
    assert text.startswith("Assumed: 1,000 keys; give --keys (or --vocabulary, --open). ")
    assert "entries per record" not in text.partition("frequency,")[0]
    assert "Assumed" not in prose("plan", "--keys", 7, "--max-entries", 2)


def test_inner_parameters_are_shown_when_asked_for(folder: Path) -> None:
    for words in (
        ["task", "show", "task.toml"],
        ["inspect", "visits.state"],
        ["run", "visits.csv", "--user", "user", "--key", "page", "--epsilon", 1, "--max-entries", 2],
        ["demo", "--users", 1000, "--keys", 100],
    ):
        assert "seed_bits" not in prose(*words)
        assert re.search(r"parameters max_entries \d+,.* seed_bits \d+", prose(*words, "--verbose"))


@pytest.mark.parametrize("command", ["run", "privatize", "simulate", "release", "plan"])
def test_every_command_that_reads_a_table_reads_it_alike(command: str, folder: Path) -> None:
    """Compressed, and with another delimiter and encoding; a wrong one is refused with line and option."""
    line = {
        "run": "run t.csv.gz --user user --key page --epsilon 1 --max-entries 2",
        "privatize": "privatize t.csv.gz task.toml --user user --key page -o x.reports",
        "simulate": "simulate task.toml --like t.csv.gz --user user --key page",
        "release": "release t.csv.gz --key page --count minutes --epsilon 1 -o x.hub",
        "plan": "plan --keys 9 --entries t.csv.gz",
    }[command]
    more = line.split()
    source = "größe;users\n1;5\n3;4\n" if command == "plan" else "größe;page;user;minutes\nä;home;u;1\n"
    (folder / "t.csv.gz").write_bytes(gzip.compress(source.encode("latin-1")))
    succeeded = run_cli(*more, "--delimiter", ";", "--encoding", "latin-1")
    assert succeeded.exit_code == 0, succeeded.output
    assert "line 1: this is not UTF-8 text; say what it is with --encoding" in refuse(
        *more, "--delimiter", ";"
    )
    assert "no text encoding called 'x'" in refuse(*more, "--encoding", "x")
    assert "one character" in refuse(*more, "--delimiter", "ab")
