"""Everything that runs during the demo: Spark, Airflow, and one reader a side. All of it ends with the demo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_barrier.project.local import SMALL_DATA
from demo.landing import FIRST_DAY
from demo.local_airflow import LocalAirflow
from demo.local_spark import CATALOG, LocalConnectServer
from demo.places import CHECKOUT, Places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAGS = CHECKOUT / "dags"


def barrier_time(number: int) -> datetime:
    """The timestamp of the ``number``-th daily barrier: the end of that day, in UTC."""
    return datetime.combine(FIRST_DAY, datetime.min.time(), timezone.utc) + timedelta(days=number)


def local_spark(places: Places, **conf: str) -> LocalConnectServer:
    """A Spark Connect server that spends two cores on small data, not on planning and compiling for big data."""
    conf = {**SMALL_DATA, "spark.driver.memory": "3g", **conf}
    return LocalConnectServer(places.warehouse, places.database, places.ivy, conf=conf, settings=places.settings())


def local_airflow(
    places: Places,
    spark: LocalConnectServer,
    environment: Mapping[str, str],
    victim: str,
    dags: Path = DAGS,
    python: str = sys.executable,
) -> LocalAirflow:
    """Airflow with the DAGs in a folder.

    ``environment``: what they read, and by which deliveries find their way. ``victim``: the task to be killed, and the
    timestamp of its barrier: `dag task timestamp`. ``python``: that of the environment which has the Airflow.
    """
    settings = places.settings()
    extra = {
        "warehouse": settings.warehouse,
        "metaservice_url": settings.metaservice_url,
        "catalog_uri": settings.catalog_uri,
        "spark_catalog": CATALOG,
    }
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(DAGS), os.environ.get("PYTHONPATH")])),
        "AIRFLOW_CONN_BARRIER_DEFAULT": json.dumps({"conn_type": "barrier", "extra": extra}),
        "AIRFLOW_CONN_SPARK_CONNECT_DEFAULT": json.dumps(
            {"conn_type": "spark_connect", "host": "sc://127.0.0.1", "port": spark.port}
        ),
        "SHOPPING_LANDING": str(places.landing),
        "SPARK_REMOTE_URL": spark.url,
        "PLAIN_MEMORY": str(places.plain_memory),
        "DEMO_VICTIM": victim,
        "DEMO_HELD": str(places.held),
        **environment,
    }
    plugins = CHECKOUT / "demo" / "saboteur"
    return LocalAirflow(places.airflow, dags, plugins, places.logs, environment, python=python)


def create_tables(spark: SparkSession, catalog: str = CATALOG) -> None:
    """The topology's tables, and the same again for the uncoordinated jobs."""
    sys.path.append(str(DAGS))
    from shopping_jobs.tables import create_tables as create

    for namespace in ("shop", "plain"):
        create(spark, catalog, namespace)


@contextmanager
def pollers(places: Places, sides: Iterable[str], environment: Mapping[str, str]) -> Iterator[None]:
    """One reader a side, in processes of their own, for as long as the block lasts. ``environment`` says where."""
    readers = []
    try:
        for side in sides:
            with (places.logs / f"poller-{side}.log").open("wb") as log:
                readers.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "demo.poller", side],
                        env={**os.environ, **environment},
                        cwd=CHECKOUT,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
        yield
    finally:
        for reader in readers:
            reader.terminate()
        for reader in readers:
            try:
                reader.wait(timeout=20)
            except subprocess.TimeoutExpired:
                reader.kill()
