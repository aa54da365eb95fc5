"""The files of deploy/, run here: the same commands and the same nginx, with other ports and folders."""

from __future__ import annotations

import datetime
import ipaddress
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from live import ask

ROOT = Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "deploy"
#: Seconds that a service may take to answer, on a machine with other work.
START = 120.0


def needed(program: str) -> str:
    """Where a program of the system is; the test is skipped where it cannot be had."""
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{program} is not installed; scripts/install_system.sh does it")
        pytest.skip(f"{program} is not installed; scripts/install_system.sh does it")
    return found


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def unit_lines(name: str) -> list[tuple[str, str]]:
    """The settings of a systemd unit."""
    text = (DEPLOY / "systemd" / f"hubbub-{name}.service").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", "["))]
    return [(line.partition("=")[0], line.partition("=")[2]) for line in lines]


def shell_commands() -> dict[str, str]:
    """Every command that starts a service, as the shell gets it, by where it is written."""
    found = {f"compose {name}": compose()["services"][name]["command"] for name in ("collector", "shuffler")}
    for name in ("collector", "shuffler"):
        (start,) = [value for key, value in unit_lines(name) if key == "ExecStart"]
        found[f"systemd {name}"] = shlex.split(start)
    for where, words in found.items():
        assert Path(words[0]).name == "sh", where
        assert words[1] == "-c", where
        assert len(words) == 3, where
    return {where: words[2] for where, words in found.items()}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextmanager
def running(
    command: list[str], log: Path, alive: str, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A process until the end of the block, from the moment that an address answers."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            env={**os.environ, "PATH": path, **environment},
        )
        try:
            deadline = time.monotonic() + START
            while not _answers(alive):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _answers(url: str) -> bool:
    try:
        return ask(url).status < 500
    except OSError:
        return False


@contextmanager
def service(where: str, folder: Path, changes: dict[str, str], **environment: str) -> Iterator[str]:
    """A service by its command in deploy/, with other folders and a free port; its address."""
    text, port = shell_commands()[where], free_port()
    listens = {"serve": "8000", "shuffler": "8701"}["serve" if " serve " in text else "shuffler"]
    (folder / "var").mkdir(exist_ok=True)
    replaced = {
        "/etc/hubbub/tasks": str(folder / "tasks"),
        "/var/lib/hubbub-collector": str(folder / "var"),
        "/var/lib/hubbub-shuffler": str(folder / "var"),
        "/var/lib/hubbub/": f"{folder / 'var'}/",
        "--host 0.0.0.0": "--host 127.0.0.1",
        f"--port {listens}": f"--port {port}",
        **changes,
    }
    for old, new in replaced.items():
        text = text.replace(old, new)
    log, address = folder / f"{where.replace(' ', '-')}.log", f"http://127.0.0.1:{port}"
    with running(["/bin/sh", "-c", text], log, f"{address}/healthz", **environment):
        yield address


# TLS


def certificates(folder: Path) -> Path:
    """A certificate authority for one test, and what it says about this machine; where its own certificate is."""
    folder.mkdir()
    now = datetime.datetime.now(datetime.UTC)
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hubbub's tests")])
    names = [x509.DNSName(name) for name in ("localhost", "collector.example", "shuffler.example")]
    here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))

    def certificate(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        start, end = now - datetime.timedelta(hours=1), now + datetime.timedelta(days=1)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
        )

    root = (
        certificate(issuer, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
    leaf = (
        certificate(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]), key.public_key())
        .add_extension(x509.SubjectAlternativeName([*names, here]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False
        )
        .sign(authority, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(root.public_bytes(pem))
    (folder / "fullchain.pem").write_bytes(leaf.public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "privkey.pem").write_bytes(private)
    return folder / "ca.pem"


@contextmanager
def nginx(folder: Path, collector: str, shuffler: str, log_level: str = "alert") -> Iterator[int]:
    """Debian's nginx with its own nginx.conf and deploy/nginx in front of two services; the port where it speaks TLS.

    The collector is reached as 127.0.0.1, the shuffler as localhost.
    """
    program, port = needed("nginx"), free_port()
    own = folder / "nginx"
    own.mkdir()
    hosts = {"127.0.0.1:8000": collector, "127.0.0.1:8701": shuffler}
    places = {
        "/etc/nginx/hubbub/": f"{own}/",
        "/var/log/nginx": str(own),
        "/etc/hubbub/certs": str(folder / "certs"),
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "shuffler.example": "localhost",
        "hubbub.log alert": f"hubbub.log {log_level}",
        **{place: address.removeprefix("http://") for place, address in hosts.items()},
    }
    for name in ("hubbub.conf", "common.conf", "upstreams.conf"):
        text = (DEPLOY / "nginx" / name).read_text()
        for old, new in places.items():
            text = text.replace(old, new)
        (own / name).write_text(text)
    temporary = [
        f"{kind}_temp_path {own}/temp-{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    ]
    debian = {
        "/run/nginx.pid": f"{own}/pid",
        "/var/log/nginx": str(own),
        "http {": "\n".join(["http {", *temporary]),
        "include /etc/nginx/conf.d/*.conf;": f"include {own}/hubbub.conf;",
        "include /etc/nginx/sites-enabled/*;": "",
        "include /etc/nginx/modules-enabled/*.conf;": "",
    }
    main = Path("/etc/nginx/nginx.conf").read_text()
    for old, new in debian.items():
        assert old in main, f"Debian's nginx.conf has changed: {old}"
        main = main.replace(old, new)
    (own / "nginx.conf").write_text(main)
    command = [program, "-c", str(own / "nginx.conf"), "-e", str(own / "start.log"), "-g", "daemon off;"]
    with (own / "output.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + START
            while not _listens(port):
                assert process.poll() is None, (own / "output.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield port
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
