"""Seeds from the server: handed out, checked, and what one token may send in a period."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collecting import Collector, collected_task, collecting, sealed_batch, some_reports
from live import Answer, ask, bearer

from helpers import refused
from hubbub.collect import clock
from hubbub.collect.mint import Mint
from hubbub.collect.quotas import Quota
from hubbub.collect.store import Batch, Store
from hubbub.device import upload as uploading
from hubbub.device.client import privatize
from hubbub.device.ledger import Ledger
from hubbub.device.upload import Uploader
from hubbub.primitives.coins import InsecureCoins
from hubbub.protocol.delivery import ask_nonce, service_address
from hubbub.protocol.nonces import NonceSeeds
from hubbub.protocol.task import Task
from hubbub.simulation.forgery import forge
from hubbub.simulation.populations import distinct_population

TASK = collected_task(seed_from="server")
PLAIN, WEEKLY = collected_task(), collected_task(period="week")


def nonce_of(collector: Collector, reports: int = 1, token: str | None = None) -> Answer:
    headers = {**bearer(token or collector.token), "Hubbub-Batch": "asked", "Hubbub-Reports": str(reports)}
    return ask(f"{collector.address}{collector.path}/nonces", b"", headers, method="POST")


def reports_for(nonce: str, count: int = 1, task: Task = TASK) -> bytes:
    crowd = distinct_population(count, 50, entries=2, seed=3).entries
    crowd.values[:] = np.abs(crowd.values)
    return privatize(task, crowd, InsecureCoins(3), NonceSeeds(nonce))[0].tobytes()


def test_reports_with_seeds_of_their_nonce_are_taken(tmp_path: Path) -> None:
    """Others are refused and counted: other seeds, an id of the sender's own, fewer reports, another batch again."""
    with collecting(f"sqlite:///{tmp_path / 's.db'}", TASK) as collector:
        answer = nonce_of(collector)
        assert answer.status == 200
        assert answer.json["batch"] == "asked"
        assert answer.json["reports"] == 1
        nonce = answer.json["nonce"]
        assert re.fullmatch("[A-Za-z0-9_-]{1,64}", nonce)
        good = reports_for(nonce)
        other = collector.send(reports_for("another"), nonce_of(collector).json["nonce"])
        assert other.status == 422
        assert "does not follow" in other.json["problems"][0]["reason"]
        assert collector.send(good, "an-id-of-my-own").status == 422
        assert collector.send(good, nonce[:-1] + ("A" if nonce[-1] != "A" else "B")).status == 422
        assert collector.send(good, nonce).json["accepted"] == 1
        assert collector.send(good, nonce).json["repeated"]
        assert collector.send(reports_for(nonce)[:2] + b"\0", nonce).status in (409, 422)
        several = nonce_of(collector, 5).json["nonce"]
        five = reports_for(several, 5)
        assert collector.send(five[: 3 * TASK.mechanism.layout.width], several).status == 422
        assert collector.reports == 1


def test_one_bad_report_does_not_hide_wrong_seeds(tmp_path: Path) -> None:
    """Of five reports the first has an illegal field and the second a seed of its own: three are taken."""
    with collecting(f"sqlite:///{tmp_path / 's.db'}", TASK) as collector:
        nonce = nonce_of(collector, 5).json["nonce"]
        rows = np.frombuffer(reports_for(nonce, 5), dtype=np.uint8).reshape(5, -1).copy()
        rows[0, -1] |= 0xF8
        rows[1, 0] ^= 1
        answer = collector.send(rows.tobytes(), nonce)
        assert answer.json["accepted"] == 3
        assert answer.json["rejected"] == 2
        reasons = {row["index"]: row["reason"] for row in answer.json["problems"]}
        assert "does not follow" in reasons[1]
        assert "does not follow" not in reasons[0]


def test_nonces_are_for_one_task_and_one_store(tmp_path: Path, opened: Callable[..., Store]) -> None:
    here, there = (Mint(opened(f"sqlite:///{tmp_path / name}.db")) for name in "ab")
    nonce = here.new(b"task", 7)
    assert here.reports(b"task", nonce) == 7
    assert Mint(opened(f"sqlite:///{tmp_path / 'a'}.db")).reports(b"task", nonce) == 7
    assert there.reports(b"task", nonce) == here.reports(b"other", nonce) == 0
    assert here.reports(b"task", nonce.replace("-7-", "-8-")) == 0
    assert here.reports(b"task", "") == 0


def test_who_is_handed_none(tmp_path: Path) -> None:
    with collecting(f"sqlite:///{tmp_path / 's.db'}", TASK, PLAIN, public_reports=10) as collector:
        plain = f"{collector.address}/v1/tasks/{PLAIN.digest.hex()}/nonces"
        headers = {**bearer(collector.token), "Hubbub-Batch": "asked"}
        assert ask(plain, b"", headers, method="POST").status == 409
        reader = collector.service.tokens.new("analyst")
        assert nonce_of(collector, token=reader).status == 403
        for bad in (0, -1, 1001, "x", "1e3"):
            assert nonce_of(collector, bad).status == 422  # type: ignore[arg-type]
        assert ask(f"{collector.address}{collector.path}/nonces", b"body", headers).status == 422
        # Without a token, what is handed out counts as if it were sent.
        found = [
            ask(
                f"{collector.address}{collector.path}/nonces",
                b"",
                {"Hubbub-Batch": "asked", "Hubbub-Reports": "5"},
                method="POST",
            ).status
            for _ in range(3)
        ]
        assert found == [200, 200, 429]


def test_a_device_reports(tmp_path: Path) -> None:
    """Through the uploader: one nonce a report, none when the budget is spent, and the report arrives."""
    week = collected_task(seed_from="server", period="week", labels={"country": ["de", "fr"]})
    with collecting(f"sqlite:///{tmp_path / 's.db'}", week) as collector:
        ledger = Ledger(tmp_path / "ledger")
        labels = {"country": "fr"}
        with Uploader(
            collector.address, week, collector.token, tmp_path / "spool", labels=labels
        ) as uploader:
            uploader.report(ledger, ["1", "2"])
            uploader.report(ledger, ["3"])  # says nothing more
            assert uploader.flush()
            assert not uploader.refused
            with refused("leave seed_from out"):
                uploader.add(b"abc")
        assert collector.reports == 1
        strata = collector.get(f"{collector.path}/strata").json
        assert "country=fr" in str(strata)


def test_nothing_is_spent_while_the_collector_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    with Uploader("http://127.0.0.1:9", TASK, "token", tmp_path / "spool", timeout=2) as uploader:
        with refused("report again later"):
            uploader.report(ledger, ["1"])
        assert ledger.spent(TASK) == 0
        assert uploader.waiting == 0
        monkeypatch.setattr(uploading, "ask_nonce", lambda *_: "nonce-of-a-test")
        uploader.report(ledger, ["1"])
        assert ledger.spent(TASK) == 1
        assert uploader.waiting == 1

        def unasked(*_: Any) -> str:
            raise AssertionError("it was asked for a nonce that it does not need")

        monkeypatch.setattr(uploading, "ask_nonce", unasked)
        uploader.report(ledger, ["2"])


def test_a_login_page_hands_out_nothing(tmp_path: Path) -> None:
    """An answer that does not repeat what was asked is nobody's nonce."""
    with collecting(f"sqlite:///{tmp_path / 's.db'}", TASK) as collector:
        address = service_address(collector.address)
        assert ask_nonce(address, TASK.digest.hex(), collector.token, 10)
        with refused("handed out none"):
            ask_nonce(address, PLAIN.digest.hex(), collector.token, 10)
        with refused("handed out none"):
            ask_nonce(address, TASK.digest.hex(), "no token", 10)


def test_a_shuffled_crowd_is_refused(tmp_path: Path) -> None:
    with collecting(f"sqlite:///{tmp_path / 's.db'}", TASK) as collector:
        answer = collector.upload(b"x" * 200, "crowd", path=collector.shuffled)
        assert answer.status == 422
        assert "without a shuffler" in answer.json["detail"]


# What one token may send


def test_a_token_may_send_so_many_a_period(store_url: str) -> None:
    """Whatever is sent again counts once, another token has its own, and a restart does not begin anew."""
    with collecting(store_url, WEEKLY, reports_per_token=5) as collector:
        one, two = (collector.service.tokens.new("upload") for _ in range(2))
        bodies = [sealed_batch(WEEKLY, some_reports(WEEKLY, 2)) for _ in range(4)]
        sent = [collector.upload(body, f"b{place}", one) for place, body in enumerate(bodies[:3])]
        assert [answer.status for answer in sent] == [200, 200, 429]
        assert "5 reports of this task in a week" in sent[2].json["detail"]
        assert int(sent[2].headers["retry-after"]) > 60
        assert collector.upload(bodies[0], "b0", one).json["repeated"]
        assert collector.upload(sealed_batch(WEEKLY, some_reports(WEEKLY, 1)), "b4", one).status == 200
        assert collector.upload(bodies[2], "b2", two).status == 200
        assert collector.upload(sealed_batch(WEEKLY, some_reports(WEEKLY, 6)), "b5", two).status == 413
        assert collector.reports == 7
    with collecting(store_url, WEEKLY, reports_per_token=5) as collector:
        assert collector.upload(bodies[3], "b3", one).status == 429
    with collecting(store_url, WEEKLY) as collector:
        assert collector.upload(bodies[3], "b3", one).status == 200


def test_seeds_that_are_not_used_count_too(tmp_path: Path) -> None:
    """So nobody asks for many nonces and uses the best; of a task without periods, that is for good."""
    with collecting(f"sqlite:///{tmp_path / 's.db'}", TASK, reports_per_token=3) as collector:
        assert [nonce_of(collector).status for _ in range(2)] == [200, 200]
        assert nonce_of(collector, 2).status == 422
        last = nonce_of(collector).json["nonce"]
        assert nonce_of(collector).status == 422
        assert collector.send(reports_for(last), last).status == 200  # it counted when it was handed out


def test_nonces_that_were_saved_up_are_no_way_to_send_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five on each of three days, all sent on the last one: five are taken then, and the others on later days."""
    task = collected_task(seed_from="server", period="day")
    now = [time.time() // 86_400 * 86_400 + 43_200]
    monkeypatch.setattr(clock, "_now", lambda: now[0])
    url, token, saved = f"sqlite:///{tmp_path / 's.db'}", None, []

    def send(collector: Collector, nonce: str) -> int:
        return collector.upload(sealed_batch(task, reports_for(nonce, 5, task)), nonce, token).status

    for _ in range(3):
        now[0] += 86_400
        with collecting(url, task, reports_per_token=5) as collector:
            token = token or collector.token
            saved.append(nonce_of(collector, 5, token).json["nonce"])
            assert nonce_of(collector, 1, token).status == 429
            sent = [send(collector, nonce) for nonce in saved] if len(saved) == 3 else []
    assert sent == [200, 429, 429]
    now[0] += 86_400
    with collecting(url, task, reports_per_token=5) as collector:
        assert send(collector, saved[1]) == 200
        assert collector.reports == 10


def test_nonces_of_others_are_no_way_to_send_more(tmp_path: Path) -> None:
    with collecting(f"sqlite:///{tmp_path / 's.db'}", TASK, reports_per_token=5) as collector:
        tokens = [collector.service.tokens.new("upload") for _ in range(2)]
        nonces = [nonce_of(collector, 5, token).json["nonce"] for token in tokens]
        bodies = [sealed_batch(TASK, reports_for(nonce, 5)) for nonce in nonces]
        sent = [collector.upload(body, nonce, tokens[0]) for body, nonce in zip(bodies, nonces, strict=True)]
        assert [answer.status for answer in sent] == [200, 422]
        assert collector.upload(bodies[1], nonces[1], tokens[1]).status == 200


def test_another_period_begins_anew(store_url: str, opened: Callable[..., Store]) -> None:
    store = opened(store_url)

    def append(batch: str, period: str) -> str:
        made = Batch("00" * 16, batch, 4, b"abcd", batch.encode(), 0, quota=Quota(1, period, 5))
        return store.append([made])[0]

    assert [append("a", "2026-W46"), append("b", "2026-W46"), append("b", "2026-W47")] == [
        "stored",
        "too many",
        "stored",
    ]
    both = [Batch("00" * 16, name, 3, b"abc", b"x", 0, quota=Quota(2, "2026-W47", 5)) for name in ("c", "d")]
    assert sorted(store.append(both)) == ["stored", "too many"]


# What it is for


def test_chosen_keys_per_forged_report_fall_from_three_to_one() -> None:
    """Sixteen bits of seed and 128 buckets, three targets. A forger who chooses seeds has all three in his bucket.

    With seeds that he is given, two of the three share a bucket with probability 3/128: 1.0234 on average, over 20,000
    reports with a standard error of 0.0011 (false alarms below 1e-6).
    """
    mechanism = {
        "name": "sketch_response",
        "epsilon": 1.0,
        "max_entries": 32,
        "seed_bits": 16,
        "buckets": 128,
    }
    keys = {"kind": "closed", "size": 1000, "salt": "00" * 16}
    made = {"name": "aimed", "keys": keys, "mechanism": mechanism}
    targets = ["700", "800", "900"]

    def keys_of(task: Task, count: int) -> float:
        reports = task.mechanism.layout.unpack(forge(task, count, "maximal", targets, seed=5))
        said = task.mechanism.contributions(task.keys, reports, task.keys.ids_of(targets))[0]
        return float((said > 0).sum(axis=1).mean())

    assert keys_of(Task.parse(made), 20) > 2.9
    given = keys_of(Task.parse({**made, "seed_from": "server"}), 20_000)
    assert abs(given - (1 + 3 / 128)) < 5 * 0.0011
