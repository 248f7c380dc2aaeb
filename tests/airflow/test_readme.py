"""README's example, from what is typed before it to the rows: nothing else is made, but the topic that is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from airflow_barrier.systems.spark_versions import installed_spark
from tests.delivering.feed import Reporting
from tests.support.airflow import LONG, AirflowUnderTest
from tests.support.kafka import Kafka
from tests.support.postgresql import PostgreSQL
from tests.support.spark import SparkServer
from tests.tutorials.blocks import Block, Terminal

README = Path(__file__).parents[2] / "README.md"
#: Where README has its servers.
BROKER, DATABASE = "localhost:9092", "localhost:5432/reporting"


@pytest.mark.timeout(LONG)
@pytest.mark.drawn("stories of Airflow")
@pytest.mark.touches(
    "/README.md", "sources/spark_packages.py", "cli/commands/spark_conf.py", "coordinator/spark_conf.py"
)
def test_the_example_runs_as_it_is_printed(
    airflow: AirflowUnderTest, spark_server: SparkServer, kafka: Kafka, postgresql: PostgreSQL, tmp_path: Path
) -> None:
    postgresql.url("till")  # which starts it
    database = f"127.0.0.1:{postgresql.port}/till"
    postgresql.run("CREATE ROLE till LOGIN PASSWORD 'secret'", "CREATE DATABASE till OWNER till")
    kafka.create_topic("purchases", 2)
    sold = [(1, 3), (2, 5), (1, 4)]
    kafka.send("purchases", *({"value": json.dumps({"item": item, "amount": n}).encode()} for item, n in sold))
    (typed,) = re.findall(r"(?ms)^## In and out\n.*?^```sh\n(.*?)^```$", README.read_text())
    assert BROKER in typed
    assert DATABASE in typed
    terminal = Terminal(tmp_path, airflow.environment, tmp_path / "terminal.log")
    try:
        mine = typed.replace(BROKER, kafka.address).replace(DATABASE, database)
        terminal.run(Block(f"(set -e\n{mine})\n", "", (installed_spark().source_packages["kafka"], "CREATE TABLE")))
    finally:
        terminal.close()
    airflow.unpause("till")
    run = airflow.until(lambda: airflow.run_ids("till"), "its first run")[0]
    airflow.wait_for_run("till", run)
    airflow.pause("till")  # it would go on every five minutes
    reporting = Reporting(f"postgresql://till:secret@{database}")
    assert sorted(reporting.run("SELECT item, amount FROM amount")) == [(1, 7), (2, 5)]
