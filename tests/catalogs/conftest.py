"""Every kind of catalog that keeps branches: an SQL one, and a REST one that publishes in either way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_barrier.tables.iceberg import IcebergTables
from tests.catalogs.lake import Lake, connect


@pytest.fixture(params=["sqlite", "roll-forward", "transactions"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    """`transactions`: a REST catalog whose `transactions/commit` is used, whatever becomes of a crash within it."""
    if request.param == "sqlite":
        tables = IcebergTables.connect(f"sqlite:///{tmp_path}/catalog.db", str(tmp_path / "warehouse"))
    else:
        server = request.getfixturevalue("rest_server")
        tables = connect(server, str(tmp_path), atomic=request.param == "transactions")
    with tables:
        yield Lake(tables)
