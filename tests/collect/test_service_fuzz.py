"""Whatever is sent: never a 500, never a changed state."""

from __future__ import annotations

import contextlib
import random
import socket
import warnings
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import pytest
from collecting import PRIVKV, Collector, collected_task, collecting, sealed_batch, some_reports
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from live import ask, bearer

from helpers import steady
from hubbub.collect.ingest import examine_sealed, opened
from hubbub.collect.keypair import KeyPair
from hubbub.collect.problems import Problem
from hubbub.collect.writing import Collected, Examined, examine
from hubbub.primitives.envelope import Envelope
from hubbub.primitives.errors import Refused
from hubbub.protocol.files import REPORTS
from hubbub.protocol.sealing import sealed_width
from hubbub.protocol.task import Task

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import schemathesis
    from schemathesis.checks import (
        content_type_conformance,
        not_a_server_error,
        response_schema_conformance,
        status_code_conformance,
    )

TASK = collected_task(mechanism=PRIVKV, period="week")
GOOD = sealed_batch(TASK, some_reports(TASK, 40, seed=3))
KEYS = KeyPair.fresh()

quickly = settings(
    max_examples=10, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A service that must have the same 500 reports in the end, and no counted reject."""
    with collecting(f"sqlite:///{tmp_path_factory.mktemp('store')}/s.db", TASK) as running:
        running.send(some_reports(TASK, 500), "all")
        before = everything(running)
        yield running
        assert everything(running) == before
        assert "RuntimeError" not in running.service.metrics.text(0, [])


def everything(running: Collector) -> tuple[bytes, Any, int]:
    """All that could have changed: the state, what is said of the task, and the number of tokens."""
    seen = running.get(running.path).json
    return running.get(f"{running.path}/state").body, seen, len(running.service.tokens.all())


# Through the description


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def test_as_described(collector: Collector) -> None:
    """Every route, by its description and against it, by somebody who may do everything and by nobody."""
    schema = schemathesis.openapi.from_url(f"{collector.address}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == 24
    asked: Counter[str] = Counter()
    for operation in operations:
        for mode in schemathesis.GenerationMode:

            @quickly
            @given(case=operation.as_strategy(generation_mode=mode), known=st.integers(0, 4))
            def sent(case: Any, known: int) -> None:
                if "task" in (case.path_parameters or {}) and known:
                    case.path_parameters["task"] = TASK.digest.hex()
                for headers in (bearer(collector.token), {}):
                    answer = case.call(headers=headers)
                    if (
                        answer.content != b"Invalid HTTP request received."
                    ):  # not even HTTP: the server's own 400
                        case.validate_response(answer, checks=CHECKS)
                asked[case.operation.label] += 1

            with contextlib.suppress(Unsatisfiable):  # a route without parameters has nothing to get wrong
                sent()
    assert all(asked[operation.label] for operation in operations)


# Bytes of batches


def examined(task: Task, body: bytes) -> Examined | None:
    try:
        collected = Collected(task)
        return examine(collected, opened(collected, body, 1000))
    except (Refused, Problem):
        return None


def check(task: Task, found: Examined | None) -> None:
    """Whatever was found good is good."""
    if found is not None:
        assert len(task.mechanism.layout.unpack(found.payload)) == found.count


@steady
@given(st.binary(max_size=300))
def test_any_bytes(body: bytes) -> None:
    assert examined(TASK, body) is None


@steady
@given(st.data())
def test_damaged_batches(data: st.DataObject) -> None:
    """Bits flipped, ends cut off, pieces doubled: the checksum notices all of it."""
    body = bytearray(GOOD)
    how = data.draw(st.sampled_from(["flip", "cut", "double", "insert"]))
    place = data.draw(st.integers(0, len(body) - 1))
    if how == "flip":
        body[place] ^= data.draw(st.integers(1, 255))
    elif how == "cut":
        del body[place:]
    elif how == "double":
        body[place:place] = body[place : place + data.draw(st.integers(1, 50))]
    else:
        body[place:place] = data.draw(st.binary(min_size=1, max_size=50))
    assert examined(TASK, bytes(body)) is None


@steady
@given(
    st.binary(max_size=200),
    st.sampled_from([0, 1, 2, 40, 1000, 1001, 2**63, 2**64 - 1]),
    st.sampled_from([TASK.code, 0, 65535]),
    st.sampled_from([TASK.digest, b"\0" * 16]),
    st.binary(max_size=20),
)
def test_well_sealed_nonsense(payload: bytes, count: int, code: int, digest: bytes, task: bytes) -> None:
    """The checksum is right and the contents are anything: good reports are taken, and only those."""
    for number in (count, len(payload)):
        found = examined(TASK, Envelope(REPORTS, code, digest, number, task, payload).seal())
        check(TASK, found)
        if found is not None:
            assert (code, digest, number) == (TASK.code, TASK.digest, len(payload))
            assert found.count + found.rejected == number


@steady
@given(st.binary(max_size=400))
def test_sealed_nonsense(body: bytes) -> None:
    try:
        found = examine_sealed(Collected(TASK), body, 1000, KEYS)
    except (Refused, Problem):
        return
    assert found.count == 0
    assert found.rejected == len(body) // sealed_width(TASK)


def test_batches_over_http(collector: Collector) -> None:
    """The same over the wire, where a mistake would be a 500."""
    rng = random.Random(11)
    for number in range(150):
        body = bytearray(GOOD if number % 3 else rng.randbytes(rng.randrange(200)))
        if number % 3 and body:
            body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        path = f"{collector.path}/{rng.choice(['reports', 'reports', 'shuffled'])}"
        if path.endswith("shuffled"):
            body = body[: max(1, len(body) // sealed_width(TASK)) * sealed_width(TASK) - 1]
        answer = collector.upload(bytes(body), f"fuzz-{number}", path=path)
        assert answer.status in (409, 413, 422), answer


# Bytes of requests


PATHS = [
    "/",
    "/login",
    "/logout",
    "/static/x",
    "/tasks/TASK",
    "/v1/tasks",
    "/v1/tasks/TASK",
    "/v1/tasks/TASK/device",
    "/v1/tasks/TASK/reports",
    "/v1/tasks/TASK/shuffled",
    "/v2/tasks/TASK/shuffled",
    "/v1/tasks/TASK/estimates",
    "/v1/tasks/TASK/estimates.csv",
    "/v1/tasks/TASK/history",
    "/v1/tasks/TASK/state",
    "/v1/tasks/TASK/reports.parquet",
    "/v1/key",
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/static/../../../../etc/passwd",
    "/static/%2e%2e/%2e%2e/api.py",
]
METHODS = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE"]


@pytest.mark.parametrize("path", PATHS)
def test_random_requests(collector: Collector, path: str) -> None:
    """Every method, random queries, headers and bodies on every route, with and without a token."""
    rng = random.Random(path)
    place = path.replace("TASK", TASK.digest.hex())
    for method in METHODS:
        for _ in range(3):
            noise = "".join(rng.choice("%&=?+<>'\"\\{};a0.ä") for _ in range(rng.randrange(20)))
            query = rng.choice(["", "?keys=" + noise, "?" + noise, "?top=" + "9" * rng.randrange(1, 30)])
            body = rng.randbytes(rng.randrange(64)) if method not in ("GET", "HEAD") else None
            headers = {
                "Cookie": "hubbub_session=" + rng.choice(["", "x" * 50, "%00"]),
                "Hubbub-Batch": f"x{rng.randrange(1000)}",
                "Origin": rng.choice(
                    [collector.address, "http://elsewhere", noise if noise.isascii() else ""]
                ),
                "Content-Type": rng.choice(
                    ["application/x-www-form-urlencoded", "multipart/form-data", "application/json", "x"]
                ),
                **(bearer(collector.token) if rng.random() < 0.5 else {}),
            }
            address = collector.address + place + ascii_only(query)
            answer = ask(address, body, headers, method)
            assert answer.status < 500, (method, address, answer)
            assert answer.headers["x-content-type-options"] == "nosniff"


def ascii_only(query: str) -> str:
    return "".join(part if part.isascii() else f"%{ord(part):02X}" for part in query).replace(" ", "+")


def test_random_bytes_on_the_socket(collector: Collector) -> None:
    """No HTTP at all, half a request, lies about the length: whatever comes back, it is not a 500."""
    rng = random.Random(5)
    place = urlsplit(collector.address)
    start = f"POST {collector.path}/reports HTTP/1.1\r\nHost: x\r\nHubbub-Batch: x\r\n"
    start += f"Authorization: Bearer {collector.token}\r\n"
    lies = [
        b"",
        b"\r\n\r\n",
        rng.randbytes(500),
        b"BREW / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET " + b"/x" * 40_000 + b" HTTP/1.1\r\n\r\n",
        f"{start}Content-Length: -1\r\n\r\n".encode(),
        f"{start}Content-Length: 1e3\r\n\r\n".encode(),
        f"{start}Content-Length: {'9' * 50}\r\n\r\n".encode(),
        f"{start}Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef".encode(),
        f"{start}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n".encode(),
        f"{start}Content-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\n\r\n".encode(),
        start.encode() + b"X: " + rng.randbytes(100) + b"\r\n\r\n",
    ]
    for data in lies:
        with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            found = b""
            try:
                while part := connection.recv(4096):
                    found += part
            except ConnectionError:
                pass
        assert b" 500 " not in found[:20], data[:200]
    assert collector.get("/healthz").status == 200
