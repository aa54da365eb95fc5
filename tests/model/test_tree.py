"""Keys in a tree: ids that can be read back, codes by beginnings, and privacy by enumeration through them."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import steady
from hubbub.checks.audit import audit
from hubbub.checks.enumerated import neighbour_losses
from hubbub.checks.exact import report_law
from hubbub.device.client import Client, encode_record
from hubbub.mechanisms.collision import Collision
from hubbub.model.hashing import cohort_of
from hubbub.model.keys import Keys
from hubbub.model.tree import SIDE, Tree
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task
from hubbub.server.fold import aggregate

few = settings(steady, max_examples=60)
BYTES = Tree(longest=6, levels=(2, 2, 2), shares=(2, 3, 4, 1))
LETTERS = Tree(longest=4, levels=(3, 1), shares=(1, 2, 1), alphabet="abc-", replacement="-")
LATER = Tree(longest=3, levels=(2, 1), shares=(1, 1, 1), alphabet="abc", starts=("ab", "abc"))


def task_of(tree: Tree, mechanism: Collision | None = None, **more: Any) -> Task:
    keys = Keys(kind="tree", tree=tree, salt="07" * 16, **more)
    return Task(name="words", keys=keys, mechanism=mechanism or Collision(epsilon=2, max_entries=3))


@few
@given(st.text(min_size=1, max_size=9).filter(lambda text: "\0" not in text and text.isprintable()))
def test_ids_of_bytes_can_be_read_back(text: str) -> None:
    raw = text.encode()
    name, cut = BYTES.named(BYTES.id_of(text))
    assert cut == (len(raw) > 6)
    assert name == (raw[:5].decode(errors="ignore") if cut else text)


@few
@given(st.text(min_size=1, max_size=9).filter(lambda text: "\0" not in text and text.isprintable()))
def test_every_key_is_among_the_candidates_of_every_level(text: str) -> None:
    number, before = BYTES.id_of(text), 0
    for level, length in enumerate(BYTES.lengths[:-1]):
        prefix = number // 256 ** (6 - length)
        lack = (
            0
            if level == 0
            else int(BYTES.lacking(np.array([before], np.uint64), BYTES.lengths[level - 1])[0])
        )
        piece = prefix - before * 256 ** BYTES.levels[level]
        assert piece == 0 if lack < 0 else piece in BYTES.pieces(level)[lack]
        before = prefix


def test_candidates_are_beginnings_of_text_and_nothing_else() -> None:
    pieces = {bytes(divmod(int(piece), 256)) for piece in BYTES.pieces(0)[0]}
    possible = set()
    for first in range(256):
        for second in range(256):
            raw = bytes([first, second])
            ended = raw.rstrip(b"\0")
            texts = [ended] if len(ended) < 2 else [raw + more for more in _ENDINGS]
            if ended and first and any(_is_utf8(text) for text in texts):
                possible.add(raw)
    assert possible <= pieces
    # Beginnings that only their third byte rules out (overlong forms, surrogates) stay: there are few of them.
    assert len(pieces - possible) <= 5 * 64


_ENDINGS = [b"", b"\x80", b"\xa0", b"\x80\x80", b"\xa0\x80", b"\x90\x80", b"\x90\x80\x80", b"\x80\x80\x80"]


def _is_utf8(raw: bytes) -> bool:
    try:
        return bool(raw.decode())
    except UnicodeDecodeError:
        return False


def test_symbols_from_elsewhere_are_replaced_or_the_key_is_left_out() -> None:
    strict = Tree(**LETTERS.model_dump() | {"replacement": ""})
    assert LETTERS.named(LETTERS.id_of("a c")) == ("a-c", False)
    assert strict.id_of("a c") == strict.id_of("") == BYTES.id_of("a\0") == BYTES.id_of("\ud800") == -1
    task = task_of(strict)
    entries, summary = encode_record(task, ["ab", "a c", "", "abcabc"])
    assert summary.unknown == 2
    assert [strict.named(int(number)) for number in entries.ids] == [("ab", False), ("abc", True)]
    with pytest.raises(Refused, match="no place in the task's tree"):
        task.keys.ids_of(["ab", "a c"])


def test_later_rounds_take_keys_by_what_follows_a_known_beginning() -> None:
    assert LATER.named(LATER.id_of("abc")) == ("abc", False)
    assert LATER.named(LATER.id_of("abcabca")) == ("abcab", True)
    assert LATER.named(LATER.id_of("abb")) == ("abb", False)
    assert LATER.id_of("ba") == -1


def test_keys_that_share_a_beginning_share_its_code_and_no_other() -> None:
    keys = task_of(BYTES, bits=30).keys
    ids = keys.ids_of(["norton", "nortek", "nougat", "yes"])
    for stage, alike in enumerate((3, 2, 1, 1)):
        for cohort in BYTES.cohorts_of(stage):
            codes = keys.codes(ids, cohort)
            assert len(np.unique(codes)) == 5 - alike
            assert (codes[:alike] == codes[0]).all()
            sides = keys.codes(keys.other_side(ids), cohort)
            assert (sides == codes).all() == (stage < 3)
    assert np.array_equal(keys.other_side(ids) ^ SIDE, ids)


def test_one_report_counts_keys_with_one_beginning_once() -> None:
    """Under the seeds of the first stage, many keys with one beginning have the law of one key, to the last digit."""
    task = task_of(BYTES, Collision(epsilon=1, max_entries=3, buckets=4, seed_bits=8))
    seeds = [seed for seed in range(256) if cohort_of(task.keys, np.array([seed], np.uint64))[0] < 3][:6]
    for seed in seeds:
        laws = [
            report_law(task, record, seed) for record in (["noon"], ["noon", "nougat", "no"], ["noon", "yes"])
        ]
        assert laws[0] == laws[1]
    assert any(report_law(task, ["noon"], seed) != report_law(task, ["noon", "yes"], seed) for seed in seeds)


def test_shares_of_seeds() -> None:
    seeds = np.arange(30 * 64, dtype=np.uint64)
    counts = np.bincount(BYTES.cohort_of(seeds).astype(int), minlength=12)
    assert counts.tolist() == [64 * share for share in (2, 3, 4, 1) for _ in range(3)]


TINY = Tree(longest=2, levels=(1, 1), shares=(1, 1, 1), maps=2, alphabet="abcd")
TINY_KEYS = ("a", "b", "cb", "d", "cba", "x")


class Louder(Collision):
    """The favoured weight raised by 1%."""

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return favoured * 101 // 100, other


def losses_by_stage(mechanism: Collision, keys: Sequence[str]) -> dict[int, list[Any]]:
    """Exact losses between all records of up to 3 of these keys, for some seeds of every stage."""
    task = task_of(TINY, mechanism, bits=8)
    records = [dict.fromkeys(some, 1.0) for count in range(4) for some in combinations(keys, count)]
    found: dict[int, list[Any]] = {}
    for seed in range(18):
        stage = int(cohort_of(task.keys, np.array([seed], np.uint64))[0]) // 2
        found.setdefault(stage, []).extend(neighbour_losses(task, records, seed))
    return found


@pytest.mark.parametrize("values", ["set", "signed"])
def test_privacy_by_enumeration_at_every_stage(values: Any) -> None:
    """Records that are cut, too long, or partly without a place included; and the budget is used at every stage."""
    mechanism = Collision(epsilon=1, max_entries=2, values=values, buckets=8, seed_bits=8)
    keys = TINY_KEYS if values == "set" else TINY_KEYS[:4]
    found = losses_by_stage(mechanism, keys)
    assert sorted(found) == [0, 1, 2]
    for losses in found.values():
        assert not any(loss.refutes for loss in losses)
        assert max(loss.epsilon for loss in losses) >= 0.9


def test_enumeration_notices_one_percent_through_the_tree() -> None:
    found = losses_by_stage(Louder(epsilon=1, max_entries=2, buckets=8, seed_bits=8), TINY_KEYS[:4])
    assert all(any(loss.refutes for loss in losses) for losses in found.values())


class Bolder(Collision):
    """The favoured weight raised to the power 1.5: epsilon is half as large again as claimed."""

    @property
    def weights(self) -> tuple[int, int]:
        favoured, other = super().weights
        return int(favoured * math.exp(self.epsilon / 2)), other


def test_the_audit_samples_reports_of_keys_that_have_a_place() -> None:
    """A false alarm of the audit has probability 1e-6; a loss of 1.5 times the claim is found."""
    for tree, most in ((LETTERS, 256), (LATER, 27), (BYTES, 26**2)):
        names = tree.some_keys(most)
        assert len({tree.id_of(name) for name in names} - {-1}) == most
    assert Tree(longest=2, levels=(2,), shares=(1, 1), alphabet="ab").some_keys(9) == ["aa", "ba", "ab", "bb"]
    for kind, wrong in ((Collision, False), (Bolder, True)):
        assert audit(task_of(LETTERS, kind(epsilon=2, max_entries=3)), 60_000, exact=False).refuted == wrong


@pytest.mark.parametrize("buckets", [4, 1024])
def test_merging_is_one_pass(buckets: int) -> None:
    """Where coefficients are summed up, and where codes are: bit for bit, with the reports of every map counted."""
    task = task_of(BYTES, Collision(epsilon=2, max_entries=3, buckets=buckets), bits=12)
    client = Client(task)
    packed = [client.report(["noon", "nougat"][: i % 3]) for i in range(120)]
    whole = aggregate(task, packed)
    parts = [aggregate(task, part) for part in (packed[90:], packed[:7], packed[7:90])]
    merged = parts[0].merge(parts[1]).merge(parts[2])
    assert merged.to_bytes() == whole.to_bytes()
    assert task.mechanism.empty(task.keys).load(whole.to_bytes()).to_bytes() == whole.to_bytes()
    if whole.per_code:
        seeds = task.mechanism.layout.unpack(np.frombuffer(b"".join(packed), np.uint8))[:, 0]
        counts = np.bincount(cohort_of(task.keys, seeds).astype(int), minlength=12)
        assert whole.totals[0, :, 0].tolist() == counts.tolist()


def test_a_task_file_returns() -> None:
    for tree in (BYTES, LETTERS, LATER):
        task = task_of(tree)
        assert Task.parse(tomllib.loads(task.to_toml())).digest == task.digest


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"levels": (2, 2)}, "levels add up to 4"),
        ({"shares": (1, 1)}, "3 levels need 4 shares"),
        ({"alphabet": "abca"}, "'a' twice"),
        ({"alphabet": "a"}, "at least two symbols"),
        ({"alphabet": "ab", "replacement": "c"}, "one symbol of the alphabet"),
        ({"starts": ("a", "a")}, "must be different"),
        ({"longest": 12, "levels": (6, 6), "shares": (1, 1, 1)}, "do not fit into 63 bits"),
        ({"maps": 8, "levels": (1,) * 8, "longest": 8, "shares": (1,) * 9, "alphabet": "ab"}, "more than 64"),
    ],
)
def test_trees_that_make_no_sense_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Tree(**{"longest": 6, "levels": (2, 2, 2), "shares": (1, 1, 1, 1)} | change)


def test_tasks_that_make_no_sense_are_refused() -> None:
    with pytest.raises(Refused, match="collision and local_hashing"):
        task_of(BYTES, Collision(epsilon=1, max_entries=2, family="prf"))
    with pytest.raises(Refused, match="more seed bits"):
        task_of(BYTES, Collision(epsilon=1, max_entries=2, seed_bits=4))
    with pytest.raises(ValueError, match="need a table tree"):
        Keys(kind="tree")
    with pytest.raises(ValueError, match="cohorts follow from the tree"):
        Keys(kind="tree", tree=BYTES, cohorts=5)


def test_room_for_symbols() -> None:
    assert math.prod([28] * Tree.most_symbols(28)) <= 1 << 63 < math.prod([28] * (Tree.most_symbols(28) + 1))


def test_many_codes_at_once_are_those_of_one_by_one() -> None:
    keys, rng = task_of(BYTES).keys, np.random.default_rng(3)
    ids = rng.integers(0, 1 << 48, 5000).astype(np.uint64) | np.where(rng.random(5000) < 0.5, SIDE, 0).astype(
        np.uint64
    )
    cohorts = rng.integers(0, 12, 5000).astype(np.uint64)
    many = keys.codes(ids, cohorts)
    for cohort in range(12):
        assert np.array_equal(many[cohorts == cohort], keys.codes(ids[cohorts == cohort], cohort))
