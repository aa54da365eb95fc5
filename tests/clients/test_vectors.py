"""What devices in all languages must agree on is what this version does, to the letter."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hubbub.protocol.device_document import OFFERED

ROOT = Path(__file__).parents[2]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """What the script would write now."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    maker = importlib.import_module("make_vectors")
    return lambda name: str(maker.text_of(getattr(maker, name)()))


def _stored(name: str) -> Any:
    return json.loads((ROOT / "tests" / "vectors" / name).read_text("utf-8"))


@pytest.mark.parametrize("name", ["reports", "keys", "rules", "samplers", "laws", "periods"])
def test_vectors_are_what_python_does(made: Callable[[str], str], name: str) -> None:
    """Any bit that changes in documents, codes, buckets, rules or reports shows here, and then in other languages."""
    assert made(name) == (ROOT / "tests" / "vectors" / f"{name}.json").read_text("utf-8"), (
        "reports have changed: devices in the field would disagree with the collector"
    )


def test_vectors_cover_what_is_offered() -> None:
    stored = _stored("reports.json")
    documents = [json.loads(row["document"]) for row in stored["tasks"]]
    assert {document["mechanism"]["name"] for document in documents} == set(OFFERED)
    assert {document["mechanism"]["family"] for document in documents} == {None, "walsh", "prf"}
    assert {document["keys"]["kind"] for document in documents} == {"closed", "folded", "wide"}
    assert any(document["keys"]["cohorts"] > 1 for document in documents)
    assert sum(len(row["records"]) * stored["tapes"] for row in stored["tasks"]) >= 10_000
    outcomes = [outcome for row in _stored("rules.json")["settings"] for outcome in row["outcomes"]]
    assert len(outcomes) >= 200
    assert sum(isinstance(outcome, str) for outcome in outcomes) >= 40
