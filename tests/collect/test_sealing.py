"""Sealed reports: RFC 9180 as it stands, one key opens them, and one task."""

from __future__ import annotations

import hmac

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from helpers import flips, python, refused, small_task
from hubbub.collect.keypair import KeyPair
from hubbub.device.client import Client
from hubbub.protocol.sealing import OVERHEAD, binding, seal, sealed_width

TASK = small_task(size=10, max_entries=3)
WIDTH = TASK.mechanism.layout.width
PAIR = KeyPair(bytes(range(32)))
GOLDEN_REPORT = bytes.fromhex("010203")
GOLDEN_ITEM = bytes.fromhex(
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
    assert open_by_the_book(PAIR.private, item, b"hubbub sealed report v1" + TASK.digest) == report


def test_golden_item() -> None:
    """An item that was sealed once opens for ever."""
    opened, bad = PAIR.open_each(TASK, GOLDEN_ITEM)
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
    assert one[32:] != two[32:]


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
    assert binding(other) != binding(TASK)
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
    info = b"hubbub sealed report v1" + task.digest + label
    assert open_by_the_book(PAIR.private, item[len(label) :], info) == report
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


@pytest.mark.parametrize("size", [0, 1])
def test_few_items(size: int) -> None:
    opened, bad = PAIR.open_each(TASK, seal(bytes(WIDTH), PAIR.public, TASK) * size)
    assert opened.shape == (size, WIDTH)
    assert bad == []
