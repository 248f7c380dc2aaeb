"""Each test gets a database of its own, whose audit is checked at the end, whatever the test was about.

Tests run on SQLite. With AIRFLOW_BARRIER_TEST_POSTGRESQL=postgresql://… (a server on which databases may be made)
they run on PostgreSQL as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, make_url

from airflow_barrier.metaservice.store import MetaService
from tests.metaservice.auditing import check_audit
from tests.metaservice.world import World

_POSTGRESQL = os.environ.get("AIRFLOW_BARRIER_TEST_POSTGRESQL")


@pytest.fixture(params=["sqlite", "postgresql"] if _POSTGRESQL else ["sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/barrier.db"
        return
    server = make_url(_POSTGRESQL or "").set(drivername="postgresql+psycopg")
    name = f"barrier_{uuid4().hex}"
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    yield server.set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    admin.dispose()


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
