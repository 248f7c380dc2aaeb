"""Tables of both format versions in the catalog of the session's Spark server; and catalogs without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_barrier.tables.iceberg import IcebergTables
from tests.support.postgresql import PostgreSQL
from tests.tables.lake import Lake
from tests.tables.written import Written


@pytest.fixture
def tables(spark_server: Any) -> Iterator[IcebergTables]:
    uri = f"sqlite:///{spark_server.catalog_db}"
    with IcebergTables.connect(uri, spark_server.warehouse.as_uri()) as tables:
        yield tables


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
def lake(request: pytest.FixtureRequest, spark: Any, spark_server: Any, tables: IcebergTables) -> Lake:
    return Lake(spark, tables, request.param, spark_server.url)


@pytest.fixture(params=["sqlite", "postgresql"])
def local_url(request: pytest.FixtureRequest, tmp_path: Path, postgresql: PostgreSQL) -> Iterator[str]:
    """An empty database of either kind for a catalog."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/catalog.db"
        return
    with postgresql.database(migrated=False) as url:
        yield url


@pytest.fixture
def local(local_url: str, tmp_path: Path) -> Iterator[IcebergTables]:
    """A catalog of its own, without Spark."""
    with IcebergTables.connect(local_url, str(tmp_path / "warehouse")) as tables:
        tables.catalog.create_namespace("shop")
        yield tables


@pytest.fixture
def table(local: IcebergTables) -> Written:
    """In such a catalog."""
    return Written(local)
