"""Each test runs on SQLite and on PostgreSQL, with a database of its own, whose audit is checked at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_barrier.metaservice.store import MetaService
from tests.metaservice.auditing import check_audit
from tests.metaservice.world import World
from tests.support.postgresql import PostgreSQL


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> str:
    """Which kind."""
    return str(request.param)


@pytest.fixture
def url(request: pytest.FixtureRequest, database: str, tmp_path: Path, postgresql: PostgreSQL) -> Iterator[str]:
    """An empty database."""
    if database == "sqlite":
        yield f"sqlite:///{tmp_path}/barrier.db"
        return
    # `meta` would begin with migrating it, which takes longer than copying one that is migrated.
    with postgresql.database(migrated="meta" in request.fixturenames) as url:
        yield url


@pytest.fixture
def meta(url: str) -> Iterator[MetaService]:
    meta = MetaService(url, create=True)
    meta.check()
    yield meta
    meta.close()
    check_audit(url)


@pytest.fixture
def world(meta: MetaService) -> World:
    """The shopping topology, with no barrier opened."""
    return World(meta)
