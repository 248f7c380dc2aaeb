"""Each test runs on SQLite and on PostgreSQL, with a database of its own, whose audit is checked at the end."""

from __future__ import annotations

import shutil
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
    """An empty database; for a test that asks for `history`, one with that."""
    like = request.getfixturevalue(f"{database}_history") if "history" in request.fixturenames else None
    if database == "sqlite":
        if like:
            shutil.copy(like, tmp_path / "barrier.db")
        yield f"sqlite:///{tmp_path}/barrier.db"
        return
    # `meta` would begin with migrating it, which takes longer than copying one that is migrated.
    with postgresql.database(migrated="meta" in request.fixturenames, like=like) as url:
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


@pytest.fixture
def history(world: World) -> World:
    """Barriers 1 to 3 are COMMIT."""
    return world


@pytest.fixture(scope="session")
def sqlite_history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("history") / "barrier.db"
    _make_history(f"sqlite:///{file}")
    return file


@pytest.fixture(scope="session")
def postgresql_history(postgresql: PostgreSQL) -> str:
    url = postgresql.create("history")
    _make_history(url)
    return url


def _make_history(url: str) -> None:
    meta = MetaService(url, create=True)
    world = World(meta)
    for number in (1, 2, 3):
        world.committed(number)
    meta.close()
