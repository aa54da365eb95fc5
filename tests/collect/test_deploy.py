"""deploy/ is tried: its commands are run, nginx stands in front with TLS, systemd reads its units."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import sys
import threading
import tomllib
import urllib.parse
from collections.abc import Callable, Iterator
from http.client import HTTPResponse, HTTPSConnection
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import click
import pytest
from collecting import collected_task, eventually, sealed_batch, some_reports
from deployed import (
    DEPLOY,
    ROOT,
    certificates,
    compose,
    needed,
    nginx,
    service,
    shell_commands,
    unit_lines,
)
from live import ask, bearer

from helpers import QuietServer, refuse, succeed
from hubbub.cli import main
from hubbub.collect.store import Store
from hubbub.device.ledger import Ledger
from hubbub.device.upload import Uploader

TASK = collected_task()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks").mkdir()
    TASK.save(tmp_path / "tasks" / "task.toml")
    return tmp_path


# The files themselves


@pytest.mark.parametrize(
    "where", ["compose collector", "compose shuffler", "systemd collector", "systemd shuffler"]
)
def test_every_command_and_option_exists(where: str) -> None:
    program, name, *words = shell_commands()[where].removeprefix("exec ").split()
    assert program == "hubbub"
    command = main.get_command(click.Context(main), name)
    assert command is not None
    known = {option for parameter in command.params for option in parameter.opts}
    named = {word for word in words if word.startswith("--")}
    assert named
    assert named <= known


def test_every_variable_of_the_environment_is_read() -> None:
    known = {"FORWARDED_ALLOW_IPS", "PATH", "NUMBA_CACHE_DIR"}
    for name in ("serve", "shuffler"):
        command = main.get_command(click.Context(main), name)
        assert command is not None
        known |= {str(each.envvar) for each in command.params if each.envvar}
    named = {key for service in compose()["services"].values() for key in service.get("environment", {})}
    named -= {key for key in named if key.startswith("POSTGRES_")}
    for file in DEPLOY.glob("*.env.example"):
        named |= {line.partition("=")[0] for line in file.read_text().splitlines() if line[:1].isalpha()}
    for unit in ("collector", "shuffler"):
        named |= {value.partition("=")[0] for key, value in unit_lines(unit) if key == "Environment"}
    assert {"HUBBUB_STORE", "HUBBUB_SHUFFLER_TOKEN", "HUBBUB_UPLOAD_TOKEN"} <= named
    assert named <= known


def test_compose_refers_to_what_is_there() -> None:
    """Names of services, networks, volumes and secrets; files that are mounted, or that a comment tells one to make."""
    found = compose()
    services = found["services"]
    assert set(services) == {"collector", "shuffler", "database", "proxy"}
    comment = (DEPLOY / "compose.yaml").read_text().partition("name:")[0]
    for name, about in services.items():
        assert set(about.get("depends_on", [])) <= set(services), name
        assert set(about["networks"]) <= set(found["networks"]), name
        assert set(about.get("secrets", [])) <= set(found["secrets"]), name
        for volume in about.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("./"):
                top = Path(source).parts[0]
                assert (DEPLOY / source).exists() or f"{top}/" in comment, source
            else:
                assert source in found["volumes"], source
        for file in about.get("env_file", []):
            assert (DEPLOY / f"{file}.example").exists()
    for name in ("collector", "shuffler"):
        assert services[name]["cap_drop"] == ["ALL"]
        assert services[name]["read_only"] is True
        assert "ports" not in services[name]
    assert "postgres-password" in comment
    assert (DEPLOY / services["collector"]["build"]["context"]).resolve() == ROOT
    assert (ROOT / services["collector"]["build"]["dockerfile"]).is_file()


def test_the_container_file_copies_what_is_there() -> None:
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    assert {line[0] for line in lines} <= {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "CMD"}
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for line in lines:
        if line[0] == "COPY" and not line[1].startswith("--from"):
            for source in line[1:-1]:
                assert (ROOT / source).exists()
                assert source in kept
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = re.findall(r"\.\[([\w,]+)\]", text)
    assert set(wanted.split(",")) <= set(extras)
    (number,) = re.findall(r"useradd .*--uid (\d+)", text)
    assert ["USER", number] in lines


@pytest.mark.parametrize(
    "check",
    [
        ["hadolint", "--no-color", str(DEPLOY / "Containerfile")],
        ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(DEPLOY / "compose.yaml")],
    ],
    ids=["containers", "compose"],
)
def test_linters_find_nothing(check: list[str]) -> None:
    """Both come with the environment of the tests."""
    program = Path(sys.executable).with_name(check[0])
    done = subprocess.run([program, *check[1:]], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "DL" not in done.stdout


@pytest.mark.parametrize("name", ["collector", "shuffler"])
def test_systemd_reads_the_units(name: str) -> None:
    """They are understood without a warning, and leave little open (exposure at most 2 of 10)."""
    program, unit = needed("systemd-analyze"), DEPLOY / "systemd" / f"hubbub-{name}.service"
    for arguments in (["verify"], ["security", "--offline=true", "--threshold=20", "--no-pager"]):
        done = subprocess.run([program, *arguments, str(unit)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""


# The first tokens


def test_the_first_tokens_are_in_a_file_for_its_owner_alone(folder: Path) -> None:
    """By the command of the systemd unit, whose output is a journal; they work, and a second start makes none."""
    store = {"HUBBUB_STORE": f"sqlite:///{folder}/hubbub.db"}
    file = folder / "var" / "first-tokens.json"
    with service("systemd collector", folder, {}, **store) as address:
        tokens = json.loads(file.read_text())
        assert set(tokens) == {"upload", "analyst"}
        assert file.stat().st_mode & 0o777 == 0o600
        headers = {**bearer(tokens["upload"]), "Hubbub-Batch": "a"}
        path = f"{address}/v1/tasks/{TASK.digest.hex()}"
        assert ask(f"{path}/reports", sealed_batch(TASK, some_reports(TASK, 5)), headers).status == 200
        assert ask(path, headers=bearer(tokens["analyst"])).json["reports"] == 5
    log = (folder / "systemd-collector.log").read_text()
    assert str(file) in log
    assert not any(token in log for token in tokens.values())


def test_first_tokens_are_made_when_somebody_can_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for a file that cannot be written nor for a port that is taken: the next start makes them."""
    monkeypatch.chdir(tmp_path)
    TASK.save("task.toml")
    Path("there.json").write_text("mine")
    assert "there.json" in refuse("serve", "task.toml", "--port", 0, "--first-tokens", "there.json")
    assert Path("there.json").read_text() == "mine"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "listen" in refuse("serve", "task.toml", "--port", port, "--first-tokens", "new.json")
    assert not Path("new.json").exists()
    assert succeed("token", "list")["tokens"] == []


# Behind nginx


class Echo(BaseHTTPRequestHandler):
    """Says what reached it."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        said = json.dumps({"headers": dict(self.headers.items()), "bytes": len(body)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def echo() -> Iterator[str]:
    server = QuietServer(("127.0.0.1", 0), Echo)
    server.daemon_threads, server.block_on_close = True, False
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def tls(
    authority: Path, host: str, port: int, path: str, body: bytes | None = None, **headers: str
) -> tuple[HTTPResponse, bytes]:
    """One request over TLS, checked against the test's own authority."""
    connection = HTTPSConnection(host, port, timeout=60, context=ssl.create_default_context(cafile=authority))
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request("POST" if body is not None else "GET", path, body, named)
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def test_what_the_proxy_passes_on_and_writes_down(tmp_path: Path, echo: str) -> None:
    """Name and scheme, and nobody's address, whatever a client claims; bodies up to the limit, in memory; no logs.

    With the log at its most talkative nginx would say if a body went to a file.
    """
    authority = certificates(tmp_path / "certs")
    with nginx(tmp_path, echo, echo, log_level="warn") as port:
        claims = {
            "X_Forwarded_For": "203.0.113.7",
            "X_Real_IP": "203.0.113.7",
            "Forwarded": "for=203.0.113.7",
        }
        claims["X_Forwarded_Proto"] = "http"
        for host, most in (("127.0.0.1", 9 << 20), ("localhost", 5 << 20)):
            answer, said = tls(authority, host, port, "/x", bytes(most), **claims)
            assert answer.status == 200
            assert answer.getheader("Server") == "nginx"
            seen = json.loads(said)
            assert seen["bytes"] == most
            passed = {name.lower(): value for name, value in seen["headers"].items()}
            assert passed["host"] == f"{host}:{port}"
            assert passed["x-forwarded-proto"] == "https"
            assert not {"x-forwarded-for", "x-real-ip", "forwarded"} & set(passed)
            assert "203.0.113.7" not in said.decode()
            assert tls(authority, host, port, "/x", bytes(most + 1))[0].status == 413
    log = (tmp_path / "nginx" / "hubbub.log").read_text()
    assert "too large body" in log  # the log works
    assert "temporary file" not in log
    assert (tmp_path / "nginx" / "access.log").read_text() == ""


def test_the_proxy_ends_connections_that_say_nothing_or_too_little(tmp_path: Path, echo: str) -> None:
    """After the seconds that the file says. Others are answered meanwhile, and the service never hears of them."""
    authority = certificates(tmp_path / "certs")
    context = ssl.create_default_context(cafile=authority)
    with nginx(tmp_path, echo, echo) as port:
        silent = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(20)]
        slow = context.wrap_socket(
            socket.create_connection(("127.0.0.1", port), timeout=60), server_hostname="127.0.0.1"
        )
        slow.sendall(b"POST /x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nabc")
        assert tls(authority, "127.0.0.1", port, "/x")[0].status == 200
        for connection in (*silent, slow):
            with connection:
                try:
                    while connection.recv(1000):  # until it is closed; 60 seconds are an error
                        pass
                except ConnectionError:
                    pass
        assert tls(authority, "127.0.0.1", port, "/x")[0].status == 200
    for name in ("hubbub.log", "access.log", "error.log"):
        assert "127.0.0.1" not in (tmp_path / "nginx" / name).read_text()


def test_the_whole_deployment(
    folder: Path, new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the commands of compose.yaml: PostgreSQL, collector, shuffler, nginx with TLS in front of both.

    Devices report directly and through the shuffler; an analyst logs in over TLS and gets a cookie for TLS alone;
    what is too large is refused by the collector itself.
    """
    authority = certificates(folder / "certs")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    url = new_database()
    Store(url).close()
    shuffling = succeed("token", "new", "shuffler", "--store", url)["token"]
    admin = succeed("token", "new", "admin", "--store", url)["token"]
    upload = succeed("token", "new", "upload", "--task", folder / "tasks" / "task.toml", "--store", url)[
        "token"
    ]
    changes = {"--crowd 1000": "--crowd 20"}
    with (
        service("compose collector", folder, {}, HUBBUB_STORE=url, FORWARDED_ALLOW_IPS="*") as collector,
        service(
            "compose shuffler",
            folder,
            {**changes, "http://collector:8000": collector},
            HUBBUB_SHUFFLER_TOKEN=shuffling,
            HUBBUB_UPLOAD_TOKEN="devices other-devices",
        ) as shuffler,
        nginx(folder, collector, shuffler) as port,
    ):
        for name, address in (("collector", collector), ("shuffler", shuffler)):
            _, *check = compose()["services"][name]["healthcheck"]["test"]
            check[-1] = re.sub(r"http://127\.0\.0\.1:\d+", address, check[-1])
            subprocess.run(check, check=True, timeout=60)
        outside = f"https://127.0.0.1:{port}"
        with Uploader(outside, TASK, upload, folder / "direct") as uploader:
            uploader.add(some_reports(TASK, 30))
            assert uploader.flush()
        _, said = tls(authority, "127.0.0.1", port, "/v1/key")
        public = bytes.fromhex(json.loads(said)["key"])
        spool = folder / "sealed"
        with Uploader(f"https://localhost:{port}", TASK, "devices", spool, sealed_for=public) as uploader:
            for person in range(20):
                uploader.report(Ledger(folder / f"{person}.json"), {person % 5})
            assert uploader.flush()

        def reports() -> int:
            _, said = tls(authority, "127.0.0.1", port, f"/v1/tasks/{TASK.digest.hex()}", **bearer(admin))
            count: int = json.loads(said)["reports"]
            return count

        eventually(lambda: reports() == 50, 60)
        headers = {"Authorization": f"Bearer {upload}", "Hubbub_Batch": "large"}
        route = f"/v1/tasks/{TASK.digest.hex()}/reports"
        answer, said = tls(authority, "127.0.0.1", port, route, bytes((8 << 20) + 1), **headers)
        assert (answer.status, json.loads(said)["batch"]) == (413, "large")
        form = urllib.parse.urlencode({"token": admin}).encode()
        origin = {"Origin": outside, "Content_Type": "application/x-www-form-urlencoded"}
        answer, _ = tls(authority, "127.0.0.1", port, "/login", form, **origin)
        assert answer.status == 303
        cookie = answer.getheader("Set-Cookie", "")
        assert "Secure" in cookie
        answer, said = tls(authority, "127.0.0.1", port, "/", Cookie=cookie.partition(";")[0])
        assert (answer.status, b"collected" in said) == (200, True)
        elsewhere = {**origin, "Origin": "https://elsewhere.example"}
        assert tls(authority, "127.0.0.1", port, "/login", form, **elsewhere)[0].status == 403
    assert not list((folder / "nginx").glob("temp-client_body/*"))
