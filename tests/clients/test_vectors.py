"""What devices in all languages must agree on is what this version does, to the letter."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hubbub.protocol.device_document import OFFERED

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_vectors", ROOT / "scripts" / "make_vectors.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _stored(name: str) -> Any:
    return json.loads((ROOT / "tests" / "vectors" / name).read_text("utf-8"))


@pytest.mark.parametrize("name", ["reports", "keys", "rules"])
def test_vectors_are_what_python_does(maker: ModuleType, name: str) -> None:
    """Any bit that changes in documents, codes, buckets, rules or reports shows here, and then in other languages."""
    made = maker.text_of(getattr(maker, name)())
    assert made == (ROOT / "tests" / "vectors" / f"{name}.json").read_text("utf-8"), (
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
