"""Where processes die."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    """In memory where there is such a place: a power loss is not what is tested."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield str(tmp_path)
        return
    made = tempfile.mkdtemp(prefix="airflow-barrier-crash-", dir=memory)
    yield made
    shutil.rmtree(made)
