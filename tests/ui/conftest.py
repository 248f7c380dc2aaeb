"""A browser, and what is under `ui/`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.airflow.conftest import counting, deployment
from tests.support.waiting import patience

__all__ = ["counting", "deployment"]

CHECKOUT = Path(__file__).parents[2]
#: Debian's; playwright brings none.
CHROMIUM = "/usr/bin/chromium"


@pytest.fixture(scope="session")
def ui() -> Path:
    """Where the page's sources are: with its packages installed, and built to what is committed."""
    done = subprocess.run(
        ["sh", str(CHECKOUT / "scripts" / "ui.sh"), "--check"], capture_output=True, text=True, timeout=patience(240)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return CHECKOUT / "ui"


@pytest.fixture
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=patience(60) * 1e3
        )
        yield started
        started.close()
