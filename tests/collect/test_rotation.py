"""Keys come and go while reports are on their way: nothing is lost in the overlap, and nothing opens afterwards."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from collecting import Collector, collected_task, collecting, eventually, some_reports
from live import ask, bearer

from helpers import contents, refuse, refused, run_cli, succeed
from hubbub.collect.keypair import KeyPair
from hubbub.collect.keyring import KeyRing
from hubbub.collect.mixer import Mixer
from hubbub.collect.serving import serving
from hubbub.collect.shuffler import Shuffler, create_shuffler_app
from hubbub.collect.store import Store
from hubbub.device.ledger import Ledger
from hubbub.device.upload import Uploader
from hubbub.protocol.sealing import KEY_BYTES, binding, key_id, seal, sealed_width, suite
from hubbub.protocol.strata import prefix_width
from hubbub.protocol.task import Task

TASK = collected_task()


def sealed(public: bytes, count: int, task: Task = TASK) -> list[bytes]:
    reports, width = some_reports(task, count), task.mechanism.layout.width
    return [seal(reports[start : start + width], public, task) for start in range(0, len(reports), width)]


def bare(public: bytes, count: int, task: Task = TASK) -> list[bytes]:
    """Items as they were made before they named their key."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    reports, width = some_reports(task, count), task.mechanism.layout.width
    key, info = X25519PublicKey.from_public_bytes(public), binding(task.digest, b"", bytes(KEY_BYTES))
    return [suite().encrypt(reports[i : i + width], key, info=info) for i in range(0, len(reports), width)]


# The collector


def test_a_rotation_at_the_collector(store_url: str) -> None:
    """Before, in the overlap, after: which crowds are opened, and what the metrics say about keys still in use."""
    with collecting(store_url) as collector:
        keys = collector.service.keys
        old = keys.public
        first = sealed(old, 10)
        assert (
            collector.upload(b"".join(sealed(old, 10)), "a", path=collector.shuffled).json["accepted"] == 10
        )
        fresh = keys.new()
        given = ask(f"{collector.address}/v1/key").json
        assert given == {"key": fresh.public.hex(), "id": fresh.id, "opens": [key_id(old).hex(), fresh.id]}
        assert bytes.fromhex(given["key"]) not in (old, b"")
        for name, crowd in (("b", first), ("c", sealed(fresh.public, 7))):
            assert collector.upload(b"".join(crowd), name, path=collector.shuffled).json["accepted"] == len(
                crowd
            )
        before = f"{collector.path}/shuffled"
        old_id, new_id = (key.id for key in keys.all())
        for name, public in (("d", old), ("e", fresh.public)):
            assert collector.upload(b"".join(bare(public, 5)), name, path=before).json["accepted"] == 5
        mixed = b"".join(sealed(old, 5) + sealed(fresh.public, 5))
        answer = collector.upload(mixed, "f", path=collector.shuffled)
        assert (answer.status, "one key" in answer.json["detail"]) == (422, True)
        text = collector.get("/metrics").body.decode()
        assert f'hubbub_reports_unsealed_total{{key="{old_id}"}} 20' in text
        assert f'hubbub_reports_unsealed_total{{key="{new_id}"}} 7' in text
        assert 'hubbub_reports_unsealed_total{key="00000000"} 10' in text
        late = sealed(old, 5)
        keys.retire(old_id)
        for body, path in ((late, collector.shuffled), (bare(old, 5), before)):
            answer = collector.upload(b"".join(body), "late", path=path)
            assert (answer.status, "another key" in answer.json["detail"]) == (422, True)
        assert collector.upload(b"".join(bare(fresh.public, 5)), "g", path=before).json["accepted"] == 5
        assert collector.reports == 10 + 10 + 7 + 5 + 5 + 5


def test_another_process_learns_of_keys(store_url: str, opened: Callable[..., Store]) -> None:
    with collecting(store_url) as collector:
        other = KeyRing(opened(store_url))
        assert other.public == collector.service.keys.public
        old = other.all()[0]
        made = other.new()
        eventually(lambda: ask(f"{collector.address}/v1/key").json["id"] == made.id)
        other.retire(old.id)
        crowd = b"".join(sealed(old.public, 3))
        eventually(lambda: collector.service.keys.open_each(TASK, crowd)[1] == [0, 1, 2])


def test_what_cannot_be_retired(store_url: str, opened: Callable[..., Store]) -> None:
    keys = KeyRing(opened(store_url))
    (only,) = keys.all()
    with refused("make another one first"):
        keys.retire(only.id)
    for name in ("", "00000000", "nonsense"):
        with refused("no key", "hubbub key list"):
            keys.retire(name)
    keys.new()
    keys.retire(only.id.upper())
    with refused("no key"):
        keys.retire(only.id)
    assert [(key.id, key.retired is None) for key in keys.all()] == [
        (only.id, False),
        (keys.all()[1].id, True),
    ]
    assert keys.all()[0].public == only.public


def test_the_key_of_an_earlier_version_is_the_first(tmp_path: Path, opened: Callable[..., Store]) -> None:
    """A store from before there were several keys: its key goes on opening reports until it is retired."""
    pair, path = KeyPair.fresh(), tmp_path / "store.db"
    with closing(Store(f"sqlite:///{path}")):
        pass
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO meta VALUES ('sealing key', ?)", (pair.private,))
        db.commit()
    keys = KeyRing(opened(f"sqlite:///{path}"))
    (only,) = keys.all()
    assert (only.public, only.created, only.retired) == (pair.public, None, None)
    keys.new()
    assert keys.open_each(TASK, b"".join(sealed(pair.public, 2)))[1] == []
    keys.retire(only.id)
    assert (keys.all()[0].public, keys.all()[0].created) == (pair.public, None)
    assert not any(
        pair.private in data or pair.private.hex().encode() in data for data in contents(tmp_path).values()
    )


def test_a_retired_key_is_on_no_page_of_the_file(tmp_path: Path) -> None:
    with closing(Store(f"sqlite:///{tmp_path / 'store.db'}")) as store:
        keys = KeyRing(store)
        private = keys._pairs[0].private.hex().encode()
        keys.new()
        assert any(private in data for data in contents(tmp_path).values())
        keys.retire(keys.all()[0].id)
        assert not any(private in data for data in contents(tmp_path).values())


# Through the shuffler


def mixing(folder: Path, collector: Collector, crowd: int) -> Shuffler:
    token = collector.service.tokens.new("shuffler")
    made = Shuffler(Mixer(folder / "shuffler.db"), [TASK], collector.address, token, ["up"], crowd)
    made.keys.ask()
    return made


def test_crowds_are_of_one_key(tmp_path: Path) -> None:
    """Five of each key are not ten that hide each other. Whoever has a key of his own never leaves."""
    with collecting(f"sqlite:///{tmp_path / 'store.db'}") as collector:
        old = collector.service.keys.public
        tagged = collector.service.keys.new()
        fresh = collector.service.keys.new().public
        shuffler = mixing(tmp_path, collector, 6)
        shuffler.accept(TASK, b"".join(sealed(old, 5) + sealed(fresh, 5) + sealed(tagged.public, 1)))
        assert shuffler.step() == (True, 0.0)
        assert (shuffler.mixer.waiting(TASK), collector.reports) == (11, 0)
        shuffler.accept(TASK, b"".join(sealed(old, 1)))
        shuffler.step()
        assert (shuffler.mixer.waiting(TASK), collector.reports) == (6, 6)
        shuffler.accept(TASK, b"".join(sealed(fresh, 1)))
        shuffler.step()
        assert (shuffler.mixer.waiting(TASK), collector.reports) == (1, 12)
        assert collector.get(collector.path).json["rejected"] == {}
        shuffler.mixer.close()


def test_the_same_item_under_another_name_is_the_same_item(tmp_path: Path) -> None:
    """A recorded item does not pass a second time, with another name of a key or through the old interface."""
    with collecting(f"sqlite:///{tmp_path / 'store.db'}") as collector:
        other = key_id(collector.service.keys.public)
        collector.service.keys.new()
        shuffler = mixing(tmp_path, collector, 3)
        items = sealed(collector.service.keys.public, 3)
        assert shuffler.accept(TASK, b"".join(items)) == (3, 0)
        for _ in range(2):
            for name, here in ((bytes(KEY_BYTES), 3), (other, 3), (b"abcd", 0)):
                renamed = b"".join(item[:-KEY_BYTES] + name for item in items)
                assert shuffler.accept(TASK, renamed) == (0, here)
            shuffler.step()
        assert (shuffler.mixer.waiting(TASK), collector.reports) == (0, 3)
        shuffler.mixer.close()


def test_old_devices_and_new_ones_in_the_overlap(tmp_path: Path) -> None:
    """Devices of before the rotation, whose items name no key, and of after it; each kind makes its own crowds."""
    with collecting(f"sqlite:///{tmp_path / 'store.db'}") as collector:
        shuffler = mixing(tmp_path, collector, 4)
        old = collector.service.keys.public
        with serving(create_shuffler_app(shuffler)) as url:
            path = f"/tasks/{TASK.digest.hex()}/sealed"
            first = b"".join(bare(old, 4))
            assert ask(f"{url}/v1{path}", first, bearer("up")).json == {"accepted": 4, "repeated": 0}
            assert ask(f"{url}/v1{path}", first, bearer("up")).json == {"accepted": 0, "repeated": 4}
            fresh = collector.service.keys.new().public
            assert ask(f"{url}/v2{path}", b"".join(sealed(fresh, 4)), bearer("up")).json["accepted"] == 4
            assert ask(f"{url}/v1{path}", b"".join(bare(old, 3)), bearer("up")).json["accepted"] == 3
            for version, wrong in (("v1", sealed(fresh, 1)), ("v2", bare(old, 1))):
                answer = ask(f"{url}/{version}{path}", wrong[0], bearer("up"))
                assert (answer.status, answer.json["title"]) == (422, "not sealed reports")
            eventually(lambda: collector.reports == 8)
            assert shuffler.mixer.waiting(TASK) == 3


def test_a_crowd_that_was_sent_before_the_upgrade_has_the_same_bytes(tmp_path: Path) -> None:
    """The collector took it, the answer was lost, and the shuffler is upgraded: it counts once."""
    with collecting(f"sqlite:///{tmp_path / 'store.db'}") as collector:
        crowd = b"".join(bare(collector.service.keys.public, 5))
        path = f"{collector.path}/shuffled"
        assert collector.upload(crowd, "half-sent", path=path).json["accepted"] == 5
        with closing(sqlite3.connect(tmp_path / "shuffler.db")) as db:
            db.execute("CREATE TABLE items (task BLOB, digest BLOB, item BLOB, PRIMARY KEY (task, digest))")
            db.execute(
                "CREATE TABLE outgoing (batch TEXT PRIMARY KEY, task BLOB, reports INTEGER, payload BLOB)"
            )
            db.execute("INSERT INTO outgoing VALUES ('half-sent', ?, 5, ?)", (TASK.digest, crowd))
            db.commit()
        for _ in range(2):
            shuffler = mixing(tmp_path, collector, 5)
            assert shuffler.step() == (True, 0.0)
            assert shuffler.mixer.outgoing() == []
            shuffler.mixer.close()
        assert collector.reports == 5


def test_a_device_is_upgraded_with_reports_on_its_disk(tmp_path: Path) -> None:
    """Its ledger and its spool hold items that name no key: they are sent, and asking again adds nothing."""
    with collecting(f"sqlite:///{tmp_path / 'store.db'}") as collector:
        public = collector.service.keys.public
        made = bare(public, 4)
        ledger, spool = tmp_path / "ledger.json", tmp_path / "spool" / f"{TASK.digest.hex()}-sealed"
        ledger.write_text(json.dumps({TASK.digest.hex(): {"once": [{"sealed": made[0].hex()}]}}))
        spool.mkdir(parents=True)
        (spool / f"{'a' * 32}.batch").write_bytes(made[0] + made[1])
        (spool / "open").write_bytes(made[2] + made[3] + made[3][:5])  # the last one was cut off
        shuffler = mixing(tmp_path, collector, 4)
        with serving(create_shuffler_app(shuffler)) as url:
            with Uploader(url, TASK, "up", tmp_path / "spool", sealed_for=public) as uploader:
                uploader.report(Ledger(ledger), {1})
                assert uploader.flush()
            eventually(lambda: collector.reports == 4)
            assert shuffler.mixer.waiting(TASK) == 0
        assert not [name for name in contents(tmp_path / "spool") if not name.endswith("lock")]
    assert Ledger(ledger).spent(TASK) == 1.0


# On the command line


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no store" in refuse("key", "list")
    with closing(Store("sqlite:///hubbub.db")) as store:
        first = KeyRing(store).all()[0]
    made: dict[str, Any] = succeed("key", "new")
    assert set(made) == {"id", "key"}
    listed = succeed("key", "list")["keys"]
    assert [(row["id"], row["use"]) for row in listed] == [(first.id, "opens"), (made["id"], "seal for this")]
    assert listed[1]["key"] == made["key"]
    assert "make another" in refuse("key", "retire", made["id"])
    assert succeed("key", "retire", first.id) == {"retired": first.id}
    assert [row["use"] for row in succeed("key", "list")["keys"]] == [
        "retired",
        "seal for this",
    ]
    text = run_cli("key", "list").stdout
    assert first.id in text
    assert made["id"] in text


def test_widths() -> None:
    """Four bytes for the name of the key, whatever the period."""
    for period, label in (("once", 0), ("day", 10), ("week", 8), ("month", 7)):
        task = TASK.model_copy(update={"period": period})
        assert prefix_width(task) == label
        assert sealed_width(task) == label + 32 + task.mechanism.layout.width + 16 + 4
