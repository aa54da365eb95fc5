"""The design's laws, for every mechanism there is."""

import pytest

from hubbub.checks.conformance import check_batch, check_merge, check_privacy, check_wire, examples, outcomes
from hubbub.model.mechanism import Mechanism

EXAMPLES = {repr(m): m for m in examples()}.values()


def label(mechanism: Mechanism) -> str:
    parts = mechanism.model_dump(include={"values", "unit", "family", "target", "buckets"})
    return "-".join([mechanism.name, *(str(v) for v in parts.values())])


FEW = [m for m in EXAMPLES if outcomes(m.miniature()) <= 200]
MANY = [m for m in EXAMPLES if 200 < outcomes(m.miniature()) <= 5000]


@pytest.mark.parametrize("mechanism", FEW, ids=label)
def test_privacy_by_enumeration(mechanism: Mechanism) -> None:
    check_privacy(mechanism)


@pytest.mark.parametrize("mechanism", MANY, ids=label)
def test_privacy_by_enumeration_with_several_bins(mechanism: Mechanism) -> None:
    check_privacy(mechanism, seeds=[2], keys=2)


@pytest.mark.parametrize("mechanism", EXAMPLES, ids=label)
def test_wire(mechanism: Mechanism) -> None:
    check_wire(mechanism)


@pytest.mark.parametrize("mechanism", EXAMPLES, ids=label)
def test_merge(mechanism: Mechanism) -> None:
    check_merge(mechanism)


@pytest.mark.parametrize("mechanism", EXAMPLES, ids=label)
def test_batch_is_one_by_one(mechanism: Mechanism) -> None:
    check_batch(mechanism)
