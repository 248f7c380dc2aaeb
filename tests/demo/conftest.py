"""The shopping topology over the committed sample, driven by the coordinator on the shared Spark Connect server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.topology import ExternalSource, Fragment, Job
from airflow_barrier.sources.files import Files
from airflow_barrier.spark.job import Job as SparkJob
from airflow_barrier.spark.job import load_job
from airflow_barrier.spark.sql import SqlJob
from demo.cast import DAGS, create_tables
from tests.support.spark import APART, SparkServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLE = Path(__file__).parents[1] / "data" / "landing"
_TABLES = {
    "load": ((), "shop.shopping"),
    "products": ((), "shop.products"),
    "amount": (("shop.shopping",), "shop.user_item_amount"),
    "price": (("shop.shopping",), "shop.user_item_price"),
    "category_spend": (("shop.shopping", "shop.products"), "shop.user_category_spend"),
    "avg_price": (("shop.user_item_amount", "shop.user_item_price"), "shop.user_item_avg_price"),
}


@dataclass(frozen=True)
class Shopping:
    """What `demo.steps` needs to run the topology of `dags/shopping.py` without Airflow."""

    settings: Settings
    deployment: Deployment
    spark_url: str
    fragment: Fragment
    jobs: dict[str, SparkJob]


@pytest.fixture(scope="session")
def demo_deployment(spark_server: SparkServer, spark: SparkSession) -> Iterator[Deployment]:
    """MetaService and catalog in the server's one SQLite file, with the demo's tables made."""
    create_tables(spark)
    url = f"sqlite:///{spark_server.catalog_db}"
    deployment = Deployment.connect(
        Settings(metaservice_url=url, catalog_uri=url, warehouse=spark_server.warehouse.as_uri())
    )
    yield deployment
    deployment.close()


@pytest.fixture(scope="session")
def shopping(spark_server: SparkServer, spark: SparkSession) -> Iterator[Shopping]:
    """In the catalog apart, MetaService included: tests through Airflow run the same DAGs as they are in the other."""
    with shopping_in(APART, SAMPLE, spark_server, spark) as shopping:
        yield shopping


@contextmanager
def shopping_in(catalog: str, landing: Path, server: SparkServer, spark: SparkSession) -> Iterator[Shopping]:
    """The topology in a catalog of the server that nobody else uses, over what lies in a landing folder."""
    create_tables(spark, catalog)
    warehouse = server.warehouse.parent / catalog
    url = f"sqlite:///{warehouse}/catalog.db"
    settings = Settings(url, url, warehouse.as_uri(), catalog_name=catalog, spark_catalog=catalog)
    deployment = Deployment.connect(settings)
    folder = DAGS / "shopping_jobs"
    jobs: dict[str, SparkJob] = {
        name: SqlJob((folder / "price.sql").read_text()) if name == "price" else load_job(str(folder / f"{name}.py"))
        for name in _TABLES
    }
    externals = {"load": _landed("SHOPPING", landing), "products": _landed("PRODUCTS", landing)}
    declared = tuple(
        Job(name, "tests", inlets=inlets, outlets=(outlet,), externals=externals.get(name, ()))
        for name, (inlets, outlet) in _TABLES.items()
    )
    yield Shopping(settings, deployment, server.url, Fragment("shopping", "tests", declared), jobs)
    deployment.close()


def _landed(name: str, landing: Path) -> tuple[ExternalSource, ...]:
    """A source of the DAG, over another landing folder."""
    if str(DAGS) not in sys.path:
        sys.path.append(str(DAGS))
    from shopping_jobs import landing as declared

    source: Files = getattr(declared, name)
    return (replace(source, path=str(landing / source.name)).declare(),)
