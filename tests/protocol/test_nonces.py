"""Seeds that follow from a nonce: what they are, that epsilon holds for any of them, and which tasks have none."""

from __future__ import annotations

import hashlib
import itertools
import math
import tomllib
from functools import partial
from typing import Any

import numpy as np
import pytest

from helpers import refused
from hubbub import privatize as privatize_table
from hubbub.checks.exact import Enumeration
from hubbub.device.client import Client, encode_record, privatize
from hubbub.model.record import GRID, Entries
from hubbub.primitives.coins import InsecureCoins, SecretCoins, SystemSeeds
from hubbub.protocol.device_document import FORMATS, device_document
from hubbub.protocol.nonces import NonceSeeds, check_seeds
from hubbub.protocol.sealing import check_sealable
from hubbub.protocol.task import Task
from hubbub.simulation.forgery import forge

KEYS = {"kind": "closed", "size": 4, "salt": "0f" * 16}
NONCE = "20261118-1-00112233445566778899aabb-AAAAAAAAAAAAAAAAAAAAAA"


def task_of(mechanism: dict[str, Any] | None = None, **rules: Any) -> Task:
    plain = {"name": "collision", "epsilon": 1.0, "max_entries": 1, "buckets": 4, "seed_bits": 16}
    return Task.parse(
        {"name": "told", "keys": KEYS, "mechanism": mechanism or plain, "seed_from": "server", **rules}
    )


TASK = task_of()
MANY = task_of({"name": "sketch_response", "epsilon": 1.0, "max_entries": 2, "buckets": 4, "seeds": 3})


def test_seeds_are_the_hash_of_nonce_and_number() -> None:
    seeds = NonceSeeds(NONCE)
    drawn = [*seeds.draw(64, 2), *seeds.draw(64, 1)]
    for number, seed in enumerate(drawn):
        hashed = hashlib.blake2b(f"{NONCE} {number}".encode(), digest_size=8, person=b"hubbub seed").digest()
        assert seed == int.from_bytes(hashed, "little")
    assert NonceSeeds(NONCE).draw(5, 1)[0] == int(drawn[0]) >> 59


@pytest.mark.parametrize("task", [TASK, MANY])
def test_a_report_has_a_seed_of_its_nonce(task: Task) -> None:
    """Where the device chooses among several seeds, it is one of these; under another nonce it is refused."""
    assert task.mechanism.seeds_per_report == (3 if task is MANY else 1)
    reports = np.frombuffer(Client(task).report(["1"], NONCE), dtype=np.uint8).reshape(1, -1)
    unpacked = task.mechanism.layout.unpack(reports)
    assert not len(check_seeds(task, NONCE, unpacked))
    assert check_seeds(task, NONCE + "x", unpacked).tolist() == [0]
    # The second report of a batch has other seeds than the first.
    assert check_seeds(task, NONCE, np.repeat(unpacked, 2, axis=0)).tolist() == [1]


def test_seeds_that_are_rows_of_a_matrix() -> None:
    """Of 100 rows, a seed of 7 bits says which modulo 100: honest devices and forgers report those, all are taken."""
    task = task_of({"name": "compressive", "epsilon": 1.0, "rows": 100})
    crowd = Entries(np.zeros(500, np.uint64), np.full(500, GRID), np.arange(501, dtype=np.int64))
    packed, _ = privatize(task, crowd, InsecureCoins(1), NonceSeeds(NONCE))
    assert not len(check_seeds(task, NONCE, task.mechanism.layout.unpack(packed)))
    assert task.mechanism.layout.unpack(forge(task, 500, "maximal", [1], seed=1))[:, 0].max() == 99


def test_one_seed_unless_more_are_asked_for() -> None:
    """Of several, a forger would take the best. What says how many it has, a file among others, is left as it is."""
    sketch = {"name": "sketch_response", "epsilon": 1.0, "max_entries": 8}
    one, several = task_of(sketch), task_of({**sketch, "seeds": 4})
    assert one.mechanism.seeds_per_report == 1
    assert task_of(sketch, seed_from="device").mechanism.seeds_per_report == 8
    assert several.mechanism.seeds_per_report == 4
    assert task_of({**sketch, "seeds": 0}).mechanism.seeds_per_report == 8
    for task in (one, several):
        assert Task.parse(tomllib.loads(task.to_toml())).digest == task.digest
    with refused("no mechanism called"):
        task_of({"name": "unheard_of", "epsilon": 1.0})


@pytest.mark.parametrize(("values", "cost"), [("set", 1.07), ("signed", 1.19)])
def test_what_one_seed_costs(values: str, cost: float) -> None:
    """At most so much more variance at epsilon 1, as docs/forgery.md says."""
    found = []
    for entries in (1, 2, 3, 4, 8, 16, 32):
        sketch = {"name": "sketch_response", "epsilon": 1.0, "max_entries": entries, "values": values}
        made = (task_of(sketch, seed_from=who).mechanism for who in ("server", "device"))
        one, usual = (mechanism.variance(mechanism.quantities[0], 100_000) for mechanism in made)
        found.append(one / usual)
    assert cost - 0.01 < max(found) <= cost


def _bytes_of(entries: Entries, nonce: str, coins: Enumeration) -> bytes:
    return privatize(TASK, entries, coins, NonceSeeds(nonce))[0].tobytes()


@pytest.mark.parametrize("nonce", [NONCE, "a", "20990101-1-ffffffffffffffffffffffff-_____________________-"])
def test_epsilon_holds_for_every_nonce(nonce: str) -> None:
    """All records of one key or none, all coins, through the code that ships: the worst ratio is exp(epsilon)."""
    laws = []
    for record in ([], ["0"], ["1"], ["2"], ["3"]):
        entries, _ = encode_record(TASK, record)
        laws.append(Enumeration().law(partial(_bytes_of, entries, nonce)))
    worst = 0.0
    for one, other in itertools.permutations(laws, 2):
        assert one.keys() == other.keys()
        worst = max(worst, *(float(one[report] / other[report]) for report in one))
    assert 2.7 < worst <= math.e


def test_who_may_not_have_them() -> None:
    """Tasks whose promise needs other seeds, or that would tell who sent which report."""
    with refused("seeds that nobody chooses"):
        task_of(dict(LARGE, delta=1e-6))
    with refused("have none"):
        task_of({"name": "freq_est", "epsilon": 1.0, "max_entries": 1, "size": 4})
    with refused("without messages and memoize"):
        task_of(messages=4.0)
    with refused("without messages and memoize"):
        task_of(period="week", memoize="record", memoize_cap=2)
    with refused("without a shuffler"):
        check_sealable(TASK)


LARGE = {
    "name": "sparse_sum",
    "epsilon": 1.0,
    "max_entries": 4,
    "unit": "l1",
    "distance": 8.0,
    "family": "prf",
    "seed_bits": 64,
}


def test_reports_need_a_nonce_exactly_there() -> None:
    with refused("come from the collector"):
        Client(TASK).report(["1"])
    with refused("come from the collector"):
        Client(TASK).reports(["1"])
    plain = TASK.model_copy(update={"seed_from": "device"})
    with refused("is not"):
        Client(plain).report(["1"], NONCE)
    with refused("no nonce"):
        Client(TASK).report(["1"], "two words")
    with refused("leave seed_from out"):
        privatize_table({"user": [1], "key": ["1"]}, TASK, "user", "key")
    entries, _ = encode_record(plain, ["1"])
    assert len(privatize(plain, entries, SecretCoins(), SystemSeeds())[0]) == 1


def test_tasks_that_do_not_ask_are_as_they_were() -> None:
    """Neither digest nor file nor document of other tasks mention it; the document of these is of the second form."""
    plain = TASK.model_copy(update={"seed_from": "device"})
    for text in (plain.canonical.decode(), plain.to_toml(), device_document(plain).decode()):
        assert "seed_from" not in text
    assert plain.digest != TASK.digest
    assert FORMATS[0] in device_document(plain).decode()
    assert FORMATS[1] in device_document(TASK).decode()
    assert Task.parse(tomllib.loads(TASK.to_toml())).digest == TASK.digest
