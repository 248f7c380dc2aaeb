"""An API over a real MetaService, which somebody asks who may read what the test says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_barrier.metaservice.store import MetaService
from tests.api.asking import Asking
from tests.support.postgresql import PostgreSQL


@pytest.fixture(params=["sqlite", "postgresql"])
def meta(request: pytest.FixtureRequest, tmp_path: Path, postgresql: PostgreSQL) -> Iterator[MetaService]:
    """An empty one."""
    if request.param == "sqlite":
        meta = MetaService(f"sqlite:///{tmp_path}/barrier.db", create=True)
        yield meta
        meta.close()
        return
    with postgresql.database() as url:
        meta = MetaService(url)
        yield meta
        meta.close()


@pytest.fixture
def asking(meta: MetaService) -> Asking:
    """Deployment `prod`, and who asks."""
    return Asking({"prod": meta})
