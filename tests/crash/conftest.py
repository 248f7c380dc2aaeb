"""Where processes die."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.playing import in_memory


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    with in_memory(tmp_path) as folder:
        yield folder
