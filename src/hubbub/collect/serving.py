"""Running the service: in this process, in a thread of it, or in several processes on one port."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

import uvicorn
from starlette.applications import Starlette

from hubbub.collect.connections import Door
from hubbub.collect.logs import log_to_stderr
from hubbub.collect.settings import Settings
from hubbub.primitives.errors import Refused
from hubbub.protocol.task import Task


@dataclass(frozen=True)
class Plan:
    """What to serve; plain data that travels to other processes."""

    store: str
    tasks: Sequence[Task]
    settings: Settings


def listen(host: str, port: int) -> socket.socket:
    """A socket that waits for connections; port 0 takes any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as problem:
        raise Refused(f"Nothing can listen on {host} port {port}: {problem.strerror or problem}.") from None


def address(sock: socket.socket) -> str:
    """The address of a listening socket, for browsers and clients."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def server_for(app: Starlette) -> uvicorn.Server:
    """The HTTP server: no access log, since nobody's address is to be written down, and no patience without end."""
    config = uvicorn.Config(
        app,
        access_log=False,
        log_config=None,
        server_header=False,
        ws="none",
        lifespan="on",
        http=Door(app.state.settings, getattr(app.state, "intakes", None)).protocol,  # type: ignore[arg-type]
        timeout_keep_alive=max(1, round(app.state.settings.idle_seconds)),
        timeout_graceful_shutdown=10,
    )
    return uvicorn.Server(config)


def run_app(app: Starlette, sock: socket.socket) -> None:
    """Serve until a signal asks to stop; requests under way are finished first."""
    log_to_stderr()
    server = server_for(app)

    def ask_to_stop(*_: Any) -> None:
        server.should_exit = True

    # The server has handlers of its own while it runs, and hands the signal on when it has finished.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask_to_stop)
    server.run(sockets=[sock])


def run(plan: Plan, sock: socket.socket) -> None:
    """The collector, until a signal asks to stop."""
    from hubbub.collect.api import create_app  # here, because the shuffler runs by this module, too
    from hubbub.collect.store import Store

    app = create_app(Store(plan.store), plan.tasks, plan.settings)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), name="hubbub-follow", daemon=True).start()
    run_app(app, sock)


def _follow(parent: int) -> None:
    """End in good order when the process that started this one is gone; nobody else would."""
    wait([parent])
    os.kill(os.getpid(), signal.SIGTERM)


def run_many(plan: Plan, sock: socket.socket, processes: int) -> None:
    """Serve with several processes that share the port and the store; one that dies is replaced."""
    context = multiprocessing.get_context("spawn")
    stopping = threading.Event()

    def ask_to_stop(*_: Any) -> None:
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask_to_stop)

    def start() -> Any:
        worker = context.Process(target=run, args=(plan, sock))
        worker.start()
        return worker

    workers = [start() for _ in range(processes)]
    while not stopping.wait(0.5):
        workers = [worker if worker.is_alive() else start() for worker in workers]
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join()


@contextmanager
def serving(app: Starlette, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """The service in a thread of this process, for as long as the block lasts; gives its address."""
    sock = listen(host, port)
    server = server_for(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, name="hubbub-serve", daemon=True)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise Refused("The service did not start; its log says why.")
            time.sleep(0.01)
        yield address(sock)
    finally:
        server.should_exit = True
        thread.join()
        sock.close()
