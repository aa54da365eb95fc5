"""Requests that come whole and requests that come in pieces get the same answers, alone or one after another."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from collecting import collected_task, collecting, sealed_batch, some_reports
from live import keyed_mixer, opaque_items

from hubbub.collect import connections
from hubbub.collect.serving import serving
from hubbub.collect.shuffler import Shuffler, create_shuffler_app

TASK = collected_task()
GOOD = sealed_batch(TASK, some_reports(TASK, 3, seed=1))
OTHER = sealed_batch(TASK, some_reports(TASK, 3, seed=2))
BAD = sealed_batch(TASK, some_reports(TASK, 1, seed=3) + b"\xff\xff\xff")
ITEM = opaque_items(TASK, 1)[0]


class Place:
    """A service, and where and with what token reports are sent to it."""

    def __init__(self, address: str, path: str, token: str) -> None:
        self.address, self.path, self.token = urlsplit(address), path, token

    def request(
        self, body: bytes, batch: str = "a", version: str = "1.1", method: str = "POST", **headers: str
    ) -> bytes:
        given = {"Authorization": f"Bearer {self.token}", "Hubbub-Batch": batch, "Content-Length": len(body)}
        lines = {name.replace("_", "-"): value for name, value in {**given, **headers}.items()}
        said = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value != "")
        return f"{method} {self.path} HTTP/{version}\r\nHost: x\r\n{said}\r\n".encode() + body

    def answers(self, *pieces: bytes) -> list[tuple[bytes, dict[bytes, bytes], bytes]]:
        """Everything that is said to these bytes, until the service hangs up."""
        with socket.create_connection((self.address.hostname, self.address.port), timeout=60) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            file = connection.makefile("rb")
            for number, piece in enumerate(pieces):
                connection.sendall(piece)
                if number < len(pieces) - 1:
                    connection.settimeout(0.05)
                    with pytest.raises(TimeoutError):
                        connection.recv(1, socket.MSG_PEEK)  # nothing is said before all of it has come
                    connection.settimeout(20)
            found = []
            while status := file.readline():
                headers = dict(line.rstrip().split(b": ", 1) for line in iter(file.readline, b"\r\n"))
                body = file.read(int(headers.get(b"content-length", b"0")))
                headers.pop(b"date")
                found.append((status, headers, body))
        return found


@pytest.fixture(params=["collector", "shuffler"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "collector":
        with collecting(f"sqlite:///{tmp_path}/s.db", TASK, most_reports=10) as collector:
            yield Place(collector.address, f"{collector.path}/reports", collector.token)
        return
    mixing = Shuffler(keyed_mixer(tmp_path / "m.db"), [TASK], "http://127.0.0.1:9", "t", "up", 1000)
    with serving(create_shuffler_app(mixing)) as address:
        yield Place(address, f"/v2/tasks/{TASK.digest.hex()}/sealed", "up")


def test_both_ways_give_one_answer(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    short: list[bool] = []
    answer = connections._Whole.answer
    monkeypatch.setattr(connections._Whole, "answer", lambda self: short.append(answer(self)) or short[-1])
    bodies = {
        "a": GOOD,
        "b": BAD,
        "c": b"nonsense",
        "d": ITEM,
        "e": sealed_batch(TASK, some_reports(TASK, 20)),
    }
    requests = [place.request(body, name) for name, body in bodies.items()]
    requests += [place.request(OTHER, "a"), place.request(GOOD, "not/a/name")]
    requests += [place.request(GOOD, Authorization=said) for said in ("Bearer wrong", "nonsense", "")]
    statuses = set()
    for request in requests:
        request = request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        place.answers(request)  # what is new is stored; from then on it is a repetition
        (whole,) = place.answers(request)
        handled = len(short)
        assert handled > 0
        hopeless = whole[0][9:12] in (b"400", b"401")  # is refused before its body has come
        parts = [request[:-5]] if hopeless else [request[:-5], request[-5:]]
        (pieces,) = place.answers(*parts)
        assert len(short) == handled  # that was the long way
        assert pieces == whole
        statuses.add(whole[0][9:12])
    expected = (
        {b"200", b"401", b"409", b"413", b"422", b"400"}
        if "reports" in place.path
        else {b"200", b"401", b"422"}
    )
    assert statuses == expected
    assert any(short)


@pytest.mark.parametrize(
    "line",
    [
        "Hubbub-Batch: other",
        "hubbub-batch: a",
        "Hubbub-Labels: country=de\r\nHubbub-Labels: country=fr",
        "Hubbub-Period: 2026-W46\r\nHUBBUB-PERIOD: 2026-W47",
        "Hubbub-Part: 1/2/3\r\nHubbub-Part: 1/2/3",
        "Authorization: Bearer other",
    ],
)
def test_what_is_said_twice_is_refused_both_ways(place: Place, line: str) -> None:
    """Also if it is the same both times; other headers may be there more than once."""
    body = GOOD if "reports" in place.path else ITEM
    request = place.request(body, Connection="close")
    twice = request.replace(b"Host: x\r\n", f"Host: x\r\n{line}\r\n".encode())
    (whole,) = place.answers(twice)
    (pieces,) = place.answers(twice[: -len(body) // 2])  # it is refused before its body has come
    assert whole == pieces
    assert whole[0].startswith(b"HTTP/1.1 400 ")
    name = line.partition(":")[0].title()
    assert f"The header {name} is there more than once" in json.loads(whole[2])["detail"]
    (taken,) = place.answers(request.replace(b"Host: x\r\n", b"Host: x\r\nX-A: 1\r\nX-A: 2\r\n"))
    assert taken[0] == b"HTTP/1.1 200 OK\r\n"


def test_one_after_another_on_one_connection(place: Place) -> None:
    """Several at once, and the last one says that it is the last; each is answered, in order."""
    body = GOOD if "reports" in place.path else ITEM
    several = [place.request(body, f"b{number}") for number in range(4)]
    last = place.request(body, "last", Connection="close")
    found = place.answers(b"".join([*several, last]))
    assert [status for status, _, _ in found] == [b"HTTP/1.1 200 OK\r\n"] * 5
    names = [f"b{number}".encode() for number in range(4)]
    assert all(name in said for name, (_, _, said) in zip([*names, b"last"], found, strict=True))
    assert [headers.get(b"connection") for _, headers, _ in found] == [None] * 4 + [b"close"]
    health = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    found = place.answers(several[0] + health)
    assert [b"batch" in said for _, _, said in found] == [True, False]
    (only,) = place.answers(place.request(body, "old", version="1.0"))
    assert (only[0], only[1][b"connection"]) == (b"HTTP/1.1 200 OK\r\n", b"close")


def test_other_methods_and_a_hint_to_continue(place: Place) -> None:
    body = GOOD if "reports" in place.path else ITEM
    (refused,) = place.answers(place.request(b"", method="PUT", Connection="close"))
    assert refused[0].startswith(b"HTTP/1.1 405")
    request = place.request(body, "hint", Connection="close", Expect="100-continue")
    (whole,) = place.answers(request)  # it did not wait for the hint, so it needs none
    assert whole[0] == b"HTTP/1.1 200 OK\r\n"
    with socket.create_connection((place.address.hostname, place.address.port), timeout=60) as connection:
        connection.sendall(request[: -len(body)])
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        assert b" 200 OK" in connection.recv(1 << 16)
