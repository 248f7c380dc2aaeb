"""Topologies, and a database that tables are delivered to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from tests.delivering import streaming
from tests.delivering.feed import Feed, Reporting, make_feed, reporting_on
from tests.delivering.lane import Lane, lane
from tests.support.deployments import settings_on
from tests.support.postgresql import PostgreSQL
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from tests.support.spark import SparkServer


@pytest.fixture
def feed(tmp_path: Path, postgresql: PostgreSQL) -> Iterator[Feed]:
    with settings_on("sqlite", tmp_path, postgresql) as settings:
        feed = make_feed(settings)
        yield feed
        feed.deployment.close()


@pytest.fixture
def reporting(postgresql: PostgreSQL) -> Iterator[Reporting]:
    """A database of the tests' user, who is no superuser, with two empty targets."""
    with reporting_on(postgresql) as reporting:
        yield reporting


@pytest.fixture(scope="module")
def warm() -> Iterator[Lane]:
    with lane() as opened:
        yield opened


@pytest.fixture
def proxy(postgresql: PostgreSQL, reporting: Reporting) -> Iterator[Proxy]:
    with Proxy(postgresql.port) as proxy:
        yield proxy


@pytest.fixture
def integers_settings(spark_server: SparkServer, tmp_path: Path) -> Iterator[Settings]:
    """A deployment with the table that a stream of integers comes into."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    catalog = f"sqlite:///{spark_server.catalog_db}"
    settings = Settings(f"sqlite:///{tmp_path}/meta.db", catalog, spark_server.warehouse.as_uri())
    deployment = Deployment.connect(settings)
    deployment.tables.catalog.create_namespace_if_not_exists(streaming.TOPOLOGY)
    columns = Schema(NestedField(1, "k", LongType()), NestedField(2, "n", LongType()))
    deployment.tables.catalog.create_table(streaming.TABLE, columns)
    yield settings
    deployment.tables.catalog.drop_table(streaming.TABLE)
    # the next test has another MetaService, which may not lead what this one's journal says is led by this one
    shutil.rmtree(spark_server.warehouse / "_barrier" / streaming.TOPOLOGY)
    deployment.close()
