"""What tests through Airflow look at: the same deployment that Airflow's tasks use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.airflow import AirflowUnderTest
from tests.support.counting import Counting
from tests.support.spark import IN_AIRFLOW

if TYPE_CHECKING:
    from airflow_barrier.coordinator.deployment import Deployment
    from tests.support.spark import SparkServer


@pytest.fixture(scope="session")
def deployment(spark_place: SparkServer) -> Iterator[Deployment]:
    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.coordinator.settings import Settings

    folder = spark_place.warehouse.parent / IN_AIRFLOW
    url = f"sqlite:///{folder}/catalog.db"
    settings = Settings(url, url, folder.as_uri(), catalog_name=IN_AIRFLOW, spark_catalog=IN_AIRFLOW)
    found = Deployment.connect(settings)
    yield found
    found.close()


@pytest.fixture
def counting(request: pytest.FixtureRequest, airflow: AirflowUnderTest, deployment: Deployment) -> Counting:
    """The tables of `tests/airflow/jobs/counting.py` in the namespace that the test's module names ``NAMESPACE``."""
    return Counting(request.module.NAMESPACE, airflow, deployment)
