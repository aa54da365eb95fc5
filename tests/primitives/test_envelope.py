"""Envelopes and whole-or-nothing writes."""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import contents, flips, only_refused, reason, refused, steady
from hubbub.primitives.envelope import Envelope, read_file, unseal, write_atomic

SMALL = Envelope(b"R", 4711, bytes(range(16)), 3, b'{"a": 1}', b"payload")


def resealed(data: bytes) -> bytes:
    """The same file with a checksum that fits."""
    return data[:-16] + hashlib.blake2b(data[:-16], digest_size=16).digest()


def test_what_is_sealed_is_unsealed() -> None:
    for envelope in (SMALL, replace(SMALL, kind=b"S", task=b"", payload=b"", count=(1 << 64) - 1)):
        assert unseal(envelope.seal()) == envelope


def test_layout_of_the_header() -> None:
    """Version 1, byte for byte."""
    data = SMALL.seal()
    assert data[:8] == b"hubbR\x01" + (4711).to_bytes(2, "little")
    assert data[8:24] == bytes(range(16))
    assert struct.unpack("<QQQ", data[24:48]) == (3, 8, 7)
    assert data[48:-16] == b'{"a": 1}payload'
    assert data[-16:] == hashlib.blake2b(data[:-16], digest_size=16).digest()


def test_every_flipped_bit_is_noticed() -> None:
    for damaged in flips(SMALL.seal()):
        assert "box" in reason(lambda: unseal(damaged, "box"))  # noqa: B023


def test_every_truncation_is_noticed() -> None:
    data = SMALL.seal()
    for length in range(len(data)):
        with refused("truncated" if length >= 64 else "not a hubbub file"):
            unseal(data[:length])


@pytest.mark.parametrize("more", [b"\0", b"x" * 100, SMALL.seal()])
def test_more_than_it_says_is_noticed(more: bytes) -> None:
    with refused("longer than it says"):
        unseal(SMALL.seal() + more)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_named(version: int) -> None:
    data = bytearray(SMALL.seal())
    data[5] = version
    with refused("box", f"version {version}", "reads version 1"):
        unseal(resealed(bytes(data)), "box")


def test_an_unknown_kind_is_named() -> None:
    with refused("unknown kind", "b'X'"):
        unseal(replace(SMALL, kind=b"X").seal())


def test_the_wrong_kind_is_named() -> None:
    with refused("holds reports", "state"):
        unseal(SMALL.seal(), kind=b"S")
    with refused("holds a state", "reports"):
        unseal(replace(SMALL, kind=b"S").seal(), kind=b"R")
    assert unseal(SMALL.seal(), kind=b"R") == SMALL


def test_lengths_that_do_not_add_up_are_noticed() -> None:
    """Also where a huge length would wrap around in 64 bits."""
    data = SMALL.seal()
    for task, payload in ((9, 7), (8, 6), (0, 0), ((1 << 64) - 1, 16), (1 << 63, 1 << 63)):
        forged = data[:32] + struct.pack("<QQ", task, payload) + data[48:]
        with refused():
            unseal(resealed(forged))


@steady
@given(st.binary(max_size=120), st.booleans())
def test_random_bytes_are_refused(data: bytes, dressed: bool) -> None:
    """With a right beginning and a right checksum, too, unless everything fits."""
    if dressed:
        data = resealed(b"hubbR\x01" + data + bytes(16))
    envelope = only_refused(lambda: unseal(data))
    assert envelope is None or envelope.seal() == data


# Files


def test_reading_says_why_not(tmp_path: Path) -> None:
    with refused(str(tmp_path / "none"), "No such file"):
        read_file(tmp_path / "none")
    with refused("Is a directory"):
        read_file(tmp_path)


def test_writing_replaces_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_atomic(path, b"a long first text")
    write_atomic(str(path), b"short")
    assert contents(tmp_path) == {"f": b"short"}


def test_a_link_stays_and_leads_to_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("new")
    for name in ("link", "dangling"):
        write_atomic(tmp_path / name, name.encode())
        assert (tmp_path / name).is_symlink()
    assert ((tmp_path / "real").read_bytes(), (tmp_path / "new").read_bytes()) == (b"link", b"dangling")


@pytest.mark.skipif(getattr(os, "geteuid", lambda: 1)() != 0, reason="only root can give a link away")
def test_links_of_others_are_not_followed(tmp_path: Path) -> None:
    """In a folder where everybody may write, somebody could lay one that leads to a file of ours."""
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    os.chown(tmp_path / "link", 65534, 65534, follow_symlinks=False)
    with refused("link", "belongs to somebody else"):
        write_atomic(tmp_path / "link", b"new")
    assert contents(tmp_path) == {"real": b"old", "link": b"old"}


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    """Root may replace /dev/null by a file, and then nobody has one."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for path in (tmp_path / "pipe", tmp_path / "link"):
        with refused(str(path), "cannot be written: it is not a file"):
            write_atomic(path, b"text")
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


def test_a_written_file_can_be_read_by_whom_the_mask_allows(tmp_path: Path) -> None:
    """Not by its owner alone, as temporary files are."""
    mask = os.umask(0o027)
    try:
        write_atomic(tmp_path / "f", b"")
    finally:
        os.umask(mask)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("step", ["os.fsync", "os.replace", "os.fdopen", "pathlib.Path.chmod"])
@pytest.mark.parametrize(
    "problem", [KeyboardInterrupt(), OSError(28, "No space left on device"), MemoryError()]
)
def test_an_old_file_survives_every_accident(
    step: str, problem: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted at any step: the old content, no leftovers, and a full disk is refused in a sentence."""
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def fail(*_: Any, **__: Any) -> None:
        raise problem

    monkeypatch.setattr(step, fail)
    with pytest.raises(ValueError if isinstance(problem, OSError) else type(problem)):
        write_atomic(path, b"new")
    monkeypatch.undo()
    assert contents(tmp_path) == {"f": b"old"}


def test_unwritable_places_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "folder").mkdir()
    for path in (
        tmp_path / "none" / "f",
        tmp_path / "file" / "f",
        tmp_path / "folder",
        tmp_path / ("f" * 300),
    ):
        with refused("cannot be written"):
            write_atomic(path, b"new")
    assert contents(tmp_path) == {"file": b"old"}
