"""Metastores as a parameter of tests, and deployments whose tables are in one of them.

@pytest.mark.parametrize("metastore", METASTORES, indirect=True)
"""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_barrier.coordinator.settings import Settings
from tests.support.glue import GlueServer
from tests.support.hive import HiveServer

Metastore = HiveServer | GlueServer


def _param(kind: str, adapter: str) -> object:
    marks = [pytest.mark.drawn("metastores"), pytest.mark.touches("tables/_metastore.py", f"tables/{adapter}.py")]
    return pytest.param(kind, marks=marks, id=kind.replace("_", " "))


#: `old hive` compares nothing when a pointer moves.
METASTORES = (_param("hive", "_hive_catalog"), _param("old_hive", "_hive_catalog"), _param("glue", "_glue_catalog"))


@pytest.fixture
def metastore(request: pytest.FixtureRequest) -> Metastore:
    server: Metastore = request.getfixturevalue(request.param)
    return server


def settings_in(metastore: Metastore, folder: Path) -> Settings:
    """A deployment with all of its files in ``folder``, the tables' among them where the metastore is Glue's."""
    warehouse = str(folder / "warehouse")
    properties = {**dict(metastore.properties), "warehouse": warehouse}
    return Settings(
        f"sqlite:///{folder}/meta.db", metastore.uri, warehouse, catalog_properties=tuple(properties.items())
    )
