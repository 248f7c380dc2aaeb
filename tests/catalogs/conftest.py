"""Tables in every kind of catalog that keeps branches, and in the model's memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from airflow_barrier.tables.iceberg import IcebergTables
from tests.catalogs.engines import REAL, Engine, Pyiceberg, Spark, in_memory
from tests.catalogs.lake import Lake, connect
from tests.support.metastores import METASTORES


@pytest.fixture(params=["in memory", *REAL, *METASTORES])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    with ExitStack() as stack:
        yield Lake(_engine(request.param, request.getfixturevalue, tmp_path, stack))


def _engine(kind: str, fixture: Any, folder: Path, stack: ExitStack) -> Engine:
    if kind == "in memory":
        return in_memory()
    if kind.startswith("spark"):
        server = fixture("spark_server")
        uri = f"sqlite:///{server.catalog_db}"
        tables = stack.enter_context(IcebergTables.connect(uri, server.warehouse.as_uri()))
        return Spark(tables, fixture("spark"), int(kind[-1]))
    if kind.startswith("rest"):
        tables = connect(fixture("rest_server"), str(folder), atomic=kind == "rest transactions")
        return Pyiceberg(stack.enter_context(tables))
    if kind in ("hive", "old_hive", "glue"):
        return Pyiceberg(stack.enter_context(connect(fixture(kind), str(folder))))
    uri = f"sqlite:///{folder}/catalog.db"
    if kind == "in postgresql":
        uri = stack.enter_context(fixture("postgresql").database(migrated=False))
    return Pyiceberg(stack.enter_context(IcebergTables.connect(uri, str(folder / "warehouse"))))
