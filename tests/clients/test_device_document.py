"""The document that devices in other languages get: what is in it, who hands it out, and what they refuse."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from collecting import ask, collecting

from helpers import refuse, refused, small_task, succeed
from hubbub.mechanisms.registry import mechanisms
from hubbub.primitives.errors import Refused
from hubbub.protocol.device_document import OFFERED, device_document
from hubbub.protocol.task import Task


def task(name: str = "collision", **more: Any) -> Task:
    keys = {"kind": "closed", "size": 24, "salt": "5a" * 16}
    return Task.parse(
        {"name": "t", "keys": keys, "mechanism": {"name": name, "epsilon": 1.0, "max_entries": 1, **more}}
    )


def test_the_digest_is_that_of_the_text_inside() -> None:
    """So a device checks it without writing a number."""
    made = task()
    document = json.loads(device_document(made))
    assert (
        hashlib.sha256(document["task"].encode()).hexdigest()[:32] == document["digest"] == made.digest.hex()
    )
    assert json.loads(document["task"])["mechanism"]["epsilon"] == document["guarantee"]["epsilon"] == 1.0


def test_no_number_is_beyond_what_readers_of_json_keep() -> None:
    """A seed of 64 bits has 2^64 values, and weights go up to 2^56."""
    wide = task(epsilon=16.0, seed_bits=64)
    document = json.loads(
        device_document(wide), parse_int=lambda digits: digits if len(digits) > 15 else int(digits)
    )
    numbers: list[Any] = [
        *document["mechanism"]["shape"].values(),
        *(limit for _, limit in document["report"]),
    ]
    assert "18446744073709551616" in numbers
    favoured, other = (int(document["mechanism"]["shape"][name]) for name in ("favoured", "other"))
    assert (favoured, other) == wide.mechanism.weights  # type: ignore[attr-defined]
    assert favoured > 1 << 53

    def check(part: Any) -> None:
        if isinstance(part, int):
            assert abs(part) < 1 << 53
        for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            check(inner)

    check(json.loads(device_document(wide)))


def test_a_thousand_keys_fit_into_40_kilobytes() -> None:
    keys = {"kind": "closed", "vocabulary": [f"settings/privacy/item {n}" for n in range(1000)]}
    made = Task.parse(
        {
            "name": "t",
            "keys": keys,
            "mechanism": {"name": "sketch_response", "epsilon": 1.0, "max_entries": 8},
        }
    )
    assert len(device_document(made)) < 40_000


def test_what_is_not_offered_is_refused_when_it_is_exported() -> None:
    assert set(OFFERED) < set(mechanisms())
    with pytest.raises(Refused, match="repeated runs on Python devices only; others have coco, collision"):
        device_document(task("repeated"))


@pytest.mark.parametrize("rules", [{"rotation": 4}, {"memoize": "record", "memoize_cap": 3}])
def test_rules_that_older_clients_do_not_keep_have_a_format_of_their_own(rules: dict[str, Any]) -> None:
    """A device that ignored the turns or the memo of a task would say more than its owner was promised."""
    plain = small_task(size=4).model_dump() | {"period": "week", "mechanism": small_task().mechanism}
    made = json.loads(device_document(Task.parse({**plain, **rules})))
    assert made["format"] == "hubbub device task 2"
    assert rules.items() <= json.loads(made["task"]).items()
    assert json.loads(device_document(Task.parse(plain)))["format"] == "hubbub device task 1"


def test_trees_are_refused() -> None:
    """Other clients cannot code them."""
    tree = {"longest": 2, "levels": [1, 1], "shares": [1, 1, 1], "alphabet": "ab"}
    with refused("tree"):
        device_document(
            Task.parse(
                {
                    "name": "t",
                    "keys": {"kind": "tree", "bits": 8, "tree": tree},
                    "mechanism": small_task().mechanism,
                }
            )
        )


def test_export_writes_the_document_and_prints_the_pin(tmp_path: Path) -> None:
    task().save(tmp_path / "task.toml")
    facts = succeed("task", "export", tmp_path / "task.toml", "-o", tmp_path / "task.json")
    written = (tmp_path / "task.json").read_bytes()
    assert written == device_document(task())
    assert facts["pin"] == hashlib.sha256(written).hexdigest()
    assert "cannot be written as .csv" in refuse(
        "task", "export", tmp_path / "task.toml", "-o", tmp_path / "task.csv"
    )
    assert not (tmp_path / "task.csv").exists()


def test_the_service_gives_it_to_everybody_and_caches_may_keep_it(tmp_path: Path) -> None:
    with collecting(f"sqlite:///{tmp_path / 's.db'}") as collector:
        address = f"{collector.address}{collector.path}/device"
        answer = ask(address)
        assert (answer.status, answer.body) == (200, device_document(collector.task))
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["cache-control"] == "public, max-age=3600"
        tag = answer.headers["etag"]
        assert tag == f'"{hashlib.sha256(answer.body).hexdigest()}"'
        again = ask(address, headers={"If-None-Match": tag})
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
        assert ask(address, headers={"If-None-Match": '"other"'}).status == 200
        assert ask(f"{collector.address}/v1/tasks/{'0' * 32}/device").status == 404
