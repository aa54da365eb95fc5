"""From keys to codes: SipHash, permutations, folding, and which keys are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import fits, refused, steady, tilted
from hubbub.model.keys import Keys
from hubbub.primitives.siphash import derive, mix, sip_rounds, siphash, siphash_word

SALT = "00112233445566778899aabbccddeeff"

# SipHash-2-4

#: Published with the hash: key 00 01 .. 0f, messages 00 01 .. of length 0 .. 15.
VECTORS = [
    0x726FDB47DD0E0E31,
    0x74F839C593DC67FD,
    0x0D6C8009D9A94F5A,
    0x85676696D7FB7E2D,
    0xCF2794E0277187B7,
    0x18765564CD99A68D,
    0xCBC9466E58FEE3CE,
    0xAB0200F58B01D137,
    0x93F5F5799A932462,
    0x9E0082DF0BA9E4B0,
    0x7A5DBBC594DDB9F3,
    0xF4B32F46226BADA7,
    0x751E8FBC860EE5FB,
    0x14EA5627C0843D90,
    0xF723CA908E7AF2EE,
    0xA129CA6149BE45E5,
]
#: The same for length 63: eight words.
LONGEST = 0x958A324CEB064572
KEY = (0x0706050403020100, 0x0F0E0D0C0B0A0908)


def test_siphash_gives_the_published_values() -> None:
    assert [siphash(*KEY, bytes(range(length))) for length in range(16)] == VECTORS
    assert siphash(*KEY, bytes(range(63))) == LONGEST


def u64(*numbers: int) -> Any:
    return np.array(numbers, dtype=np.uint64)


def test_one_word_is_eight_bytes() -> None:
    """Array and compiled versions of one word against the byte version, under many keys."""
    rng = np.random.default_rng(1)
    keys0, keys1, words = rng.integers(0, 1 << 64, (3, 200), dtype=np.uint64)
    right = [
        siphash(int(a), int(b), int(w).to_bytes(8, "little"))
        for a, b, w in zip(keys0, keys1, words, strict=True)
    ]
    assert siphash_word(keys0, keys1, words).tolist() == right
    compiled = siphash_word.compiled()
    assert [int(compiled(a, b, w)) for a, b, w in zip(keys0, keys1, words, strict=True)] == right
    assert siphash_word(u64(KEY[0]), u64(KEY[1]), u64(0x0706050403020100)).tolist() == [VECTORS[8]]


@steady
@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=4, max_size=4), st.integers(1, 4))
def test_rounds_agree_in_all_three_modes(words: list[int], count: int) -> None:
    plain = sip_rounds(*words, count)
    assert [int(v[0]) for v in sip_rounds(*(u64(w) for w in words), count)] == list(plain)
    assert [int(v) for v in sip_rounds.compiled()(*(np.uint64(w) for w in words), count)] == list(plain)


def test_mix_is_a_bijection() -> None:
    """Undone step by step, so no two words meet."""
    rng = np.random.default_rng(2)
    words = np.concatenate([rng.integers(0, 1 << 64, 500, dtype=np.uint64), u64(0, 1, (1 << 64) - 1)])
    whole = (1 << 64) - 1

    def unshift(word: int, shift: int) -> int:
        result = word
        for _ in range(64 // shift + 1):
            result = word ^ (result >> shift)
        return result

    for word, mixed in zip(words.tolist(), mix(words).tolist(), strict=True):
        back = unshift(mixed, 31) * pow(0x94D049BB133111EB, -1, 1 << 64) & whole
        back = unshift(back, 27) * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & whole
        assert unshift(back, 30) == word


def test_derived_words_differ_by_salt_and_purpose() -> None:
    items = np.arange(100, dtype=np.uint64)
    lots = [derive(salt, purpose, items).tolist() for salt in (1, 2) for purpose in (1, 2, 3)]
    assert len({word for lot in lots for word in lot}) == 600


# Codes


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 8, 11, 16])
@pytest.mark.parametrize("spare", [1, 2])
def test_closed_codes_do_not_collide(bits: int, spare: int) -> None:
    """Every cohort maps 2^bits - spare keys to different codes, none of them zero."""
    size = (1 << bits) - spare
    keys = Keys(kind="closed", size=size, bits=bits, cohorts=5, salt=SALT)
    for cohort in range(5):
        codes = keys.codes(keys.all_ids(), cohort)
        assert len(set(codes.tolist())) == size
        assert codes.min() >= 1
        assert codes.max() < 1 << bits


def test_cohorts_and_salts_have_codes_of_their_own() -> None:
    """Two independent permutations of 4095 codes agree in 1 place on average (16 or more: 1e-13)."""
    keys = Keys(kind="closed", size=4095, bits=12, cohorts=3, salt=SALT)
    other = keys.model_copy(update={"salt": SALT[::-1]})
    maps = [keys.codes(keys.all_ids(), cohort) for cohort in range(3)]
    maps.append(other.codes(other.all_ids(), 0))
    for i, one in enumerate(maps):
        for two in maps[:i]:
            assert (one == two).sum() < 16


def test_bits_are_chosen_from_the_size() -> None:
    assert Keys(kind="closed", size=10).bits == 16
    assert Keys(kind="closed", size=(1 << 17) - 1).bits == 17
    assert Keys(kind="closed", size=1 << 17).bits == 18
    assert Keys(kind="folded").bits == 20
    assert Keys(kind="wide").bits == 64


def test_folded_codes_are_uniform_and_never_zero() -> None:
    """False-alarm rate at most 1e-6 per cohort; one code 30% too likely is rejected."""
    keys = Keys(kind="folded", bits=4, cohorts=3, salt=SALT)
    ids = keys.ids_of([f"key {i}" for i in range(20_000)])
    for cohort in range(3):
        codes = keys.codes(ids, cohort)
        assert codes.min() == 1
        assert codes.max() == 15
        counts = np.bincount(codes.astype(np.int64), minlength=16)[1:]
        assert fits(counts, np.full(15, 1 / 15))
        assert not fits(counts, tilted(np.full(15, 1 / 15)))


def test_wide_codes_use_all_bits() -> None:
    """Among 300 codes no bit is always the same (odds 64 * 2^-299) and no two are equal (odds 2e-15)."""
    keys = Keys(kind="wide", salt=SALT)
    codes = keys.codes(keys.ids_of(list(range(300))), 0)
    assert len(set(codes.tolist())) == 300
    assert int(np.bitwise_or.reduce(codes)) == (1 << 64) - 1
    assert int(np.bitwise_and.reduce(codes)) == 0


@pytest.mark.parametrize("kind", ["closed", "folded", "wide"])
def test_signs_are_balanced(kind: str) -> None:
    """False-alarm rate at most 1e-6; 65% of one sign is rejected."""
    keys = Keys(kind=kind, size=4000 if kind == "closed" else None, salt=SALT)
    signs = keys.signs(keys.ids_of(list(range(4000))))
    assert set(signs.tolist()) == {-1, 1}
    plus = int((signs == 1).sum())
    assert fits([plus, 4000 - plus], [0.5, 0.5])
    assert not fits([plus, 4000 - plus], [0.65, 0.35])


@pytest.mark.parametrize("kind", ["closed", "folded", "wide"])
def test_a_long_list_of_ids_is_coded_like_single_ones(kind: str) -> None:
    """With one cohort for all or one per id, more ids than keys or fewer."""
    keys = Keys(kind=kind, size=20 if kind == "closed" else None, cohorts=3, salt=SALT)
    ids = keys.ids_of([place * 7 % 20 for place in range(100)])
    ids = np.concatenate([ids, keys.other_side(ids)])
    for cohort in range(3):
        singles = [int(keys.codes(ids[i : i + 1], cohort)[0]) for i in range(200)]
        assert keys.codes(ids, cohort).tolist() == singles
        assert keys.codes(ids, np.full(200, cohort, dtype=np.uint64)).tolist() == singles
    assert keys.signs(ids).tolist() == [int(keys.signs(ids[i : i + 1])[0]) for i in range(200)]


@pytest.mark.parametrize("kind", ["closed", "folded", "wide"])
def test_both_sides_of_a_key_have_codes_of_their_own(kind: str) -> None:
    keys = Keys(kind=kind, size=500 if kind == "closed" else None, salt=SALT)
    ids = keys.ids_of(list(range(500)))
    both = np.concatenate([ids, keys.other_side(ids)])
    assert len(set(both.tolist())) == 1000
    if kind != "folded":
        assert len(set(keys.codes(both, 0).tolist())) == 1000


def test_alias_odds_are_the_odds_of_sharing_a_code() -> None:
    """15 codes: of 6000 * 5999 / 2 pairs, a share of 1/15 meets (6 standard deviations: 0.0004)."""
    keys = Keys(kind="folded", bits=4, salt=SALT)
    assert keys.alias_odds == 1 / 15
    counts = np.bincount(keys.codes(keys.ids_of(list(range(6000))), 0).astype(np.int64))
    share = (counts * (counts - 1)).sum() / (6000 * 5999)
    assert abs(share - keys.alias_odds) < 4e-4
    assert Keys(kind="closed", size=5).alias_odds == 0.0
    assert Keys(kind="wide").alias_odds == 0.0


# Which keys are keys


@pytest.mark.parametrize("kind", ["closed", "folded", "wide"])
def test_a_number_and_its_text_are_one_key(kind: str) -> None:
    keys = Keys(kind=kind, size=100 if kind == "closed" else None, salt=SALT)
    assert keys.id_of(42) == keys.id_of("42")
    assert keys.ids_of([0, np.int64(42)]).tolist() == keys.ids_of(["0", "42"]).tolist()


def test_integer_vocabulary_takes_its_integers_and_nothing_else() -> None:
    keys = Keys(kind="closed", size=100)
    assert [keys.id_of(place) for place in range(100)] == list(range(100))
    assert [keys.name_of(place) for place in (0, 99)] == ["0", "99"]


@pytest.mark.parametrize(
    "key",
    ["007", "-1", "1.0", "", " 1", "1 ", "+1", "1e1", "0x1", "1_0", "٣", "²", "100", -1, 100, "9" * 5000],
)
def test_other_spellings_are_refused_in_an_integer_vocabulary(key: Any) -> None:
    with refused("not in the task's vocabulary of 100 keys"):
        Keys(kind="closed", size=100).id_of(key)


def test_named_vocabulary() -> None:
    keys = Keys(kind="closed", vocabulary=("007", "b", "7"))
    assert keys.ids_of(["b", "007", 7]).tolist() == [1, 0, 2]
    assert keys.count == 3
    for unknown in ("B", "07", "", "b "):
        with refused(repr(unknown), "vocabulary of 3 keys"):
            keys.id_of(unknown)


def test_open_keys_are_hashed_under_the_salt() -> None:
    salt = bytes(range(16)).hex()
    keys = Keys(kind="wide", salt=salt)
    assert keys.salt_words == KEY
    assert keys.id_of("\0\1\2") == VECTORS[3]
    assert keys.id_of("é") == siphash(*KEY, "é".encode())


def test_text_that_has_no_bytes_is_refused() -> None:
    """Half of a surrogate pair is no text that could be hashed."""
    with refused():
        Keys(kind="wide").id_of("\ud800")


def test_an_open_vocabulary_cannot_be_listed() -> None:
    with refused("name the keys"):
        Keys(kind="folded").all_ids()
