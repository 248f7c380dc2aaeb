"""A database whose changes are read, and where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources.databases import Beside, Database, database_of
from tests.support.postgresql import PostgreSQL


@pytest.fixture
def database(postgresql: PostgreSQL) -> Iterator[Database]:
    with database_of(postgresql) as database:
        yield database


@pytest.fixture
def beside(tmp_path: Path) -> Beside:
    return Beside(tmp_path)
