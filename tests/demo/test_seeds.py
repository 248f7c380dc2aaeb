from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from airflow_barrier.coordinator.deployment import Deployment
from demo.seeds import run_seeds
from tests.support.spark import SparkServer


def test_each_level_sees_what_flip_276_says(
    demo_deployment: Deployment, spark: SparkSession, spark_server: SparkServer, tmp_path: Path
) -> None:
    found = run_seeds(demo_deployment, spark, spark_server.url, tmp_path / "landing")
    assert found.holds, found
