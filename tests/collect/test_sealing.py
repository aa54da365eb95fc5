"""Sealed reports: RFC 9180 as it stands, one key opens them, and one task."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from helpers import flips, python, refused, small_task
from hubbub.collect.keypair import KeyPair, open_each
from hubbub.collect.staging import digest
from hubbub.device.client import Client
from hubbub.protocol.sealing import KEY_BYTES, NO_KEY, OVERHEAD, key_id, naming_no_key, seal, sealed_width

TASK = small_task(size=10, max_entries=3)
WIDTH = TASK.mechanism.layout.width
PAIR = KeyPair(bytes(range(32)))
GOLDEN_REPORT = bytes.fromhex("010203")
GOLDEN_ITEM = bytes.fromhex(
    "892317840802fcacf5591a0a80cdba3a8a70d0a7d3f256c5871e368b5082fa320b361b398981173d51d50803b8c8111f4b7605bb2db64f"
)
#: From the time before items named their key.
GOLDEN_BARE_ITEM = bytes.fromhex(
    "0d5e7d8ca0b31854d8421f3c0d3261cf86dacd6bc4f0e490a4beb99c2ff91e5ec4184922367c24cd452a7989bcd23ad3f1d572"
)


# An independent reading of RFC 9180, base mode, from hash, curve and cipher alone.


def _extract(salt: bytes, suite: bytes, label: bytes, key: bytes) -> bytes:
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + key, "sha256")


def _expand(secret: bytes, suite: bytes, label: bytes, info: bytes, length: int) -> bytes:
    text = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return hmac.digest(secret, text + b"\x01", "sha256")[:length]


def open_by_the_book(private: bytes, item: bytes, info: bytes, extra: bytes = b"") -> bytes:
    """DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-128-GCM, message number 0."""
    key = X25519PrivateKey.from_private_bytes(private)
    enc, ciphertext = item[:32], item[32:]
    shared = key.exchange(X25519PublicKey.from_public_bytes(enc))
    kem, suite = b"KEM\x00\x20", b"HPKE\x00\x20\x00\x01\x00\x01"
    context = enc + key.public_key().public_bytes_raw()
    secret = _expand(_extract(b"", kem, b"eae_prk", shared), kem, b"shared_secret", context, 32)
    schedule = b"\x00" + _extract(b"", suite, b"psk_id_hash", b"") + _extract(b"", suite, b"info_hash", info)
    root = _extract(secret, suite, b"secret", b"")
    nonce = _expand(root, suite, b"base_nonce", schedule, 12)
    return AESGCM(_expand(root, suite, b"key", schedule, 16)).decrypt(nonce, ciphertext, extra)


def test_the_book_agrees_with_the_published_vector() -> None:
    """RFC 9180, appendix A.1.1, first message."""
    item = bytes.fromhex(
        "37fda3567bdbd628e88668c3c8d7e97d1d1253b6d4ea6d44c150f741f1bf4431"
        "f938558b5d72f1a23810b4be2ab4f84331acc02fc97babc53a52ae8218a355a96d8770ac83d07bea87e13c512a"
    )
    private = bytes.fromhex("4612c550263fc8ad58375df3f557aac531d26850903e55a9f23f21d8534e8ac8")
    plain = open_by_the_book(private, item, b"Ode on a Grecian Urn", b"Count-0")
    assert plain == b"Beauty is truth, truth beauty"


def test_an_item_is_hpke_by_the_book() -> None:
    report = Client(TASK).report({1, 2})
    item = seal(report, PAIR.public, TASK)
    name = hashlib.blake2b(PAIR.public, digest_size=4, person=b"hubbub key id").digest()
    assert item.endswith(name)
    info = b"hubbub sealed report v2" + TASK.digest + name
    assert open_by_the_book(PAIR.private, item[:-4], info) == report


def test_golden_item() -> None:
    """An item that was sealed once opens for as long as its key is kept, also from before items named their key."""
    for item in (GOLDEN_ITEM, naming_no_key(TASK, GOLDEN_BARE_ITEM)):
        opened, bad = PAIR.open_each(TASK, item)
        assert (opened.tobytes(), bad) == (GOLDEN_REPORT, [])


@given(st.lists(st.binary(min_size=WIDTH, max_size=WIDTH), max_size=5))
def test_what_was_sealed_is_opened(reports: list[bytes]) -> None:
    items = [seal(report, PAIR.public, TASK) for report in reports]
    assert {len(item) for item in items} <= {sealed_width(TASK)} == {WIDTH + OVERHEAD}
    opened, bad = PAIR.open_each(TASK, b"".join(items))
    assert opened.shape == (len(reports), WIDTH)
    assert (opened.tobytes(), bad) == (b"".join(reports), [])


def test_two_seals_of_one_report_share_nothing() -> None:
    one, two = (seal(bytes(WIDTH), PAIR.public, TASK) for _ in range(2))
    assert one[:32] != two[:32]
    assert one[32:-KEY_BYTES] != two[32:-KEY_BYTES]
    assert one[-KEY_BYTES:] == two[-KEY_BYTES:] == key_id(PAIR.public)


def test_every_flipped_bit_is_noticed_and_only_that_item_is_lost() -> None:
    """The 255th bit of the encapsulated key is the exception that RFC 7748 asks for: it is ignored
    by the curve, but not by the key schedule, so it does not open either."""
    report = Client(TASK).report({5})
    good, item = (seal(report, PAIR.public, TASK) for _ in range(2))
    for damaged in flips(item):
        opened, bad = PAIR.open_each(TASK, good + damaged + good)
        assert (opened.tobytes(), bad) == (report + report, [1])


def test_another_task_another_key_and_nonsense_do_not_open() -> None:
    other = small_task(size=10, max_entries=3, epsilon=1.5)
    assert other.mechanism.layout.width == WIDTH
    item = seal(bytes(WIDTH), PAIR.public, TASK)
    assert PAIR.open_each(other, item)[1] == [0]
    assert KeyPair.fresh().open_each(TASK, item)[1] == [0]
    assert PAIR.open_each(TASK, bytes(len(item)) + b"\xff" * len(item))[1] == [0, 1]


@pytest.mark.parametrize(
    ("period", "name", "another"),
    [("day", "2024-03-06", "2024-03-07"), ("week", "2024-W10", "2024-W11"), ("month", "2024-03", "2023-03")],
)
def test_an_item_opens_for_its_own_period_and_no_other(period: str, name: str, another: str) -> None:
    task = TASK.model_copy(update={"period": period})
    report = Client(task).report({1, 2})
    item, label = seal(report, PAIR.public, task, name), name.encode()
    assert (item[: len(label)], len(item)) == (label, sealed_width(task))
    info = b"hubbub sealed report v2" + task.digest + label + key_id(PAIR.public)
    assert open_by_the_book(PAIR.private, item[len(label) : -KEY_BYTES], info) == report
    opened, bad = PAIR.open_each(task, item + another.encode() + item[len(label) :])
    assert (opened.tobytes(), bad) == (report, [1])
    for wrong in ("once", "", name + "0", name[1:]):
        with refused(f"one a {period}"):
            seal(report, PAIR.public, task, wrong)
    with refused("no periods"):
        seal(report, PAIR.public, TASK, name)


def test_refusals() -> None:
    item = seal(bytes(WIDTH), PAIR.public, TASK)
    with refused("whole number", "truncated"):
        PAIR.open_each(TASK, item[:-1])
    with refused("at a time"):
        seal(bytes(WIDTH + 1), PAIR.public, TASK)
    for key in (b"", bytes(32), b"\x01" + bytes(31), bytes(33)):
        with refused("public key"):
            seal(bytes(WIDTH), key, TASK)
    with refused("32 bytes"):
        KeyPair(bytes(31))


def test_the_private_key_is_not_printed() -> None:
    pair = KeyPair.fresh()
    assert pair.private.hex() not in repr(pair)
    assert repr(pair.private) not in repr(pair)
    assert pair.public != pair.private != KeyPair.fresh().private


def test_sealing_loads_nothing_but_its_cipher() -> None:
    """A device that seals loads no server code, and one that does not seal no cipher."""
    code = (
        "import sys, hubbub.protocol.sealing, hubbub.protocol.task\n"
        "heavy = ('cryptography', 'scipy', 'numba', 'fastapi', 'hubbub.collect')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert python(code).strip() == "[]"


# Several keys


def test_an_item_opens_with_the_key_that_it_names_and_an_old_one_with_any() -> None:
    pairs = [PAIR, KeyPair.fresh(), KeyPair.fresh()]
    items = [seal(bytes([place]) * WIDTH, pair.public, TASK) for place, pair in enumerate(pairs)]
    crowd = b"".join([*items, naming_no_key(TASK, GOLDEN_BARE_ITEM)])
    opened, bad = open_each(pairs, TASK, crowd)
    assert (opened.tobytes(), bad) == (bytes([0] * WIDTH + [1] * WIDTH + [2] * WIDTH) + GOLDEN_REPORT, [])
    assert open_each(pairs[1:], TASK, crowd)[1] == [0, 3]
    assert open_each(pairs[:1], TASK, crowd)[1] == [1, 2]


def test_the_name_of_the_key_cannot_be_changed_or_left_out() -> None:
    """Neither can somebody on the way move an item into another crowd, nor is it another item without its name."""
    other = KeyPair.fresh()
    item = seal(bytes(WIDTH), PAIR.public, TASK)
    for name in (NO_KEY, other.id, b"abcd"):
        assert open_each([PAIR, other], TASK, item[:-KEY_BYTES] + name)[1] == [0]
        assert digest(item[:-KEY_BYTES] + name) == digest(item)
    assert open_each([PAIR, other], TASK, naming_no_key(TASK, GOLDEN_BARE_ITEM)[:-KEY_BYTES] + PAIR.id)[
        1
    ] == [0]


def test_the_name_of_the_key_is_the_same_for_everybody() -> None:
    """It follows from the public key alone, whatever the report, the task and the period are."""
    daily = TASK.model_copy(update={"period": "day"})
    reports = [Client(TASK).report({place}) for place in range(5)]
    items = [seal(report, PAIR.public, TASK) for report in reports]
    items += [seal(report, PAIR.public, daily, "2024-03-06") for report in reports]
    assert {item[-KEY_BYTES:] for item in items} == {key_id(PAIR.public)} != {NO_KEY}


@pytest.mark.parametrize("size", [0, 1])
def test_few_items(size: int) -> None:
    opened, bad = PAIR.open_each(TASK, seal(bytes(WIDTH), PAIR.public, TASK) * size)
    assert opened.shape == (size, WIDTH)
    assert bad == []
