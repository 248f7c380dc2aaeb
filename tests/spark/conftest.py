"""A deployment in a catalog of its own on the shared Spark server, with the connections that operators ask for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.shop import COLUMNS, Shop, make_shop
from tests.support.spark import APART

if TYPE_CHECKING:
    from tests.support.spark import SparkServer

ROWS = [{"amount": 1, "price": 1}]


@pytest.fixture
def shop(spark_server: SparkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Four barriers, COMMIT, in the catalog that Spark calls `apart`."""
    from airflow_barrier.coordinator.settings import Settings
    from airflow_barrier.hooks.barrier import BarrierHook

    folder = spark_server.warehouse.parent / APART
    extra = {
        "metaservice_url": f"sqlite:///{tmp_path}/meta.db",
        "catalog_uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": folder.as_uri(),
        "catalog_name": APART,
        "spark_catalog": APART,
        "tag_policy": "every=1",
    }
    host, _, port = spark_server.url.removeprefix("sc://").partition(":")
    monkeypatch.setenv("AIRFLOW_CONN_BARRIER_DEFAULT", json.dumps({"conn_type": "barrier", "extra": extra}))
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_CONNECT_DEFAULT",
        json.dumps({"conn_type": "spark_connect", "host": host, "port": int(port)}),
    )
    assert isinstance(BarrierHook().get_settings(), Settings)
    shutil.rmtree(folder / "_barrier", ignore_errors=True)  # of whoever had the catalog before, and another MetaService
    deployment = BarrierHook().get_deployment(new=True)
    for table in COLUMNS:
        if deployment.tables.catalog.table_exists(table):
            deployment.tables.catalog.drop_table(table)
    shop = make_shop(BarrierHook().get_settings())
    for day in range(1, 5):
        barrier = shop.open(day)
        shop.process_all(barrier, ROWS)
        shop.commit(barrier)
    yield shop
    for table in COLUMNS:
        shop.deployment.tables.catalog.drop_table(table)
    shop.deployment.close()
    shutil.rmtree(folder / "_barrier")
