"""The control is a fair one: its tables are wrong only together."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_barrier.coordinator.deployment import Deployment
from demo.cast import DAGS, barrier_time
from demo.poller import ask
from demo.verify import verify_plain
from tests.demo.conftest import SAMPLE
from tests.support.spark import SparkServer

_JOBS = ("load.py", "products.py", "amount.py", "price.sql", "category_spend.py", "avg_price.py")


@pytest.mark.timeout(600)
@pytest.mark.drawn("demo")
def test_uncoordinated_tables_are_right_when_nothing_runs(
    demo_deployment: Deployment, spark_server: SparkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(DAGS))
    monkeypatch.setenv("SPARK_REMOTE_URL", spark_server.url)
    monkeypatch.setenv("PLAIN_MEMORY", str(tmp_path / "memory"))
    from shopping_jobs.landing import PRODUCTS, SHOPPING
    from shopping_jobs.plain import run_plain

    landing = tmp_path / "landing"
    schemas = {source.name: source.schema for source in (SHOPPING, PRODUCTS)}
    torn = []
    for day in (1, 2):
        for folder in SAMPLE.glob(f"*/date=2017-01-0{day}"):
            shutil.copytree(folder, landing / folder.parent.name / folder.name)
        for job in _JOBS:
            run_plain(DAGS / "shopping_jobs" / job, str(landing), barrier_time(day), schemas)
            torn.append(ask(demo_deployment.tables, "plain").torn)
    assert verify_plain(demo_deployment, landing) == []
    assert torn == [True, True, True, True, True, False] * 2
