"""The terminals that tutorials are played in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.tutorials.terminals import Terminals


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    (tmp_path / "venv").symlink_to(sys.prefix)
    with ExitStack() as stack:
        yield Terminals(tmp_path, stack)
