"""A real browser for tests: headless Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FLAGS = (
    "--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync"
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Chromium, in CI always, elsewhere where it is installed."""
    program = shutil.which("chromium")
    if program is None:
        message = (
            "Chromium is not installed: run scripts/install_system.sh as root, or apt-get install chromium."
        )
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=FLAGS.split())
        yield started
        started.close()
