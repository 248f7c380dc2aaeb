"""A job's SQL that does not fit what it reads: Spark's own sentence of it, and never a word about damaged records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_barrier.operators._task import reason_of
from airflow_barrier.protocol.errors import SourceDataError
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.files import Files
from airflow_barrier.sources.kafka import Kafka
from airflow_barrier.spark.connect import connect_session, stop_session
from airflow_barrier.spark.driver import run_epoch
from airflow_barrier.spark.sql import SqlJob
from tests.sources.landing import Cutter, day, land
from tests.support.epochs import AMOUNT, SHOPPING, shop_for_a_day, shopping_barriers
from tests.support.kafka import Kafka as Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark import SparkServer

SCHEMA = "userId BIGINT, itemId BIGINT, bought DATE"
MISTAKES = {
    "item_id, 1, 1": "A column, variable, or function parameter with name `item_id` cannot be resolved. Did you mean",
    "userId, itemId + bought, 1": "AnalysisException: [DATATYPE_MISMATCH",
    "userId, totl(itemId), 1": "AnalysisException: [UNRESOLVED_ROUTINE] Cannot resolve routine `totl`",
    "userId, itemId 1": "ParseException: [PARSE_SYNTAX_ERROR] Syntax error at or near '1'",
}


def test_sql_that_does_not_fit_is_told_as_what_it_is(
    spark: SparkSession, spark_server: SparkServer, kafka: Broker, tmp_path: Path
) -> None:
    barriers = shopping_barriers(spark, tmp_path)
    shop_for_a_day(barriers, 1)
    topic = kafka.topic()
    kafka.send(topic, {"value": b'{"userId": 1, "itemId": 2, "bought": "2026-01-01"}'})
    land(tmp_path / "csv" / "in.csv", "1,2,2026-01-01\n")
    land(tmp_path / "json" / "in.json", '{"userId": 1, "itemId": 2, "bought": "2026-01-01"}\n')
    sources = {
        **{form: Files(str(tmp_path / form), format=form, schema=SCHEMA) for form in ("csv", "json")},
        "topic": Kafka(topic, format="json", schema=SCHEMA).within(Limits(), kafka.credentials),
    }
    cuts = {name: Cutter(source).cut(day(1)) for name, source in sources.items()}
    spec = replace(
        barriers.begin(1, inlets=[SHOPPING], outlets=[AMOUNT]),
        externals={name: source.declare() for name, source in sources.items()},
        cuts=cuts,
        secrets={name: source.secrets for name, source in sources.items()},
    )
    session = connect_session(spark_server.url)
    try:
        relations = [
            *(f"{{source:{name}}}" for name in sources),
            f"(SELECT *, DATE '2026-01-01' bought FROM {{read:{SHOPPING}}})",
        ]
        for relation in relations:
            for columns, said in MISTAKES.items():
                job = SqlJob(f"INSERT INTO {{target:{AMOUNT}}}\nSELECT {columns} FROM {relation}")
                with pytest.raises(Exception, match=r".") as raised:
                    run_epoch(session, spec, job)
                assert not isinstance(raised.value, SourceDataError), reason_of(raised.value)
                assert said in reason_of(raised.value), f"{columns} of {relation}"
    finally:
        stop_session(session)
