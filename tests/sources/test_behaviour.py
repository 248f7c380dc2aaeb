"""The sources' behaviour suite on landing folders, tables of others, topics, databases and streams."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AclOperation

from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.files import Files
from airflow_barrier.sources.iceberg_table import IcebergTable
from airflow_barrier.sources.kafka import Kafka
from airflow_barrier.tables.iceberg import IcebergTables
from tests.sources.behaviour import Behaviour, Place
from tests.sources.databases import Beside, Database, database_of
from tests.sources.landing import land
from tests.sources.streams import source_of
from tests.support.kafka import USER
from tests.support.kafka import Kafka as Broker
from tests.support.pravega import Pravega

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_barrier.protocol.records import Cut
    from tests.support.postgresql import PostgreSQL
    from tests.support.spark import SparkServer

SCHEMA = "n BIGINT"
pytestmark = [pytest.mark.drawn("behaviour of sources"), pytest.mark.touches("sources/port.py")]


class Folder:
    catalog = None

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder, self._now = folder, datetime(2026, 1, 1, tzinfo=timezone.utc)
        self.source = Files(str(folder), format="json", schema=SCHEMA)
        self.absent = Files(str(folder / "absent"), format="json", schema=SCHEMA)

    def arrive(self, *numbers: int) -> datetime:
        self._now += timedelta(minutes=1)
        if numbers:
            land(self._folder / f"{numbers[0]}.json", "".join(f'{{"n": {n}}}\n' for n in numbers), self._now)
        return self._now

    def clear(self) -> None:
        for file in self._folder.iterdir():
            file.unlink()


class TestFiles(Behaviour):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Folder(tmp_path / "landing")


class Table:
    def __init__(self, spark: SparkSession, tables: IcebergTables) -> None:
        self._spark, self.catalog, name = spark, tables, f"crm.b{uuid4().hex}_{os.getpid()}"
        spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.crm")
        spark.sql(f"CREATE TABLE lake.{name} ({SCHEMA}) USING iceberg")
        self.source, self.absent = IcebergTable(name), IcebergTable(f"{name}_absent")

    def arrive(self, *numbers: int) -> datetime:
        if not numbers:
            return datetime.now(timezone.utc)
        self._spark.createDataFrame([(n,) for n in numbers], SCHEMA).writeTo(f"lake.{self.source.name}").append()
        committed = self.catalog.load(self.source.name).history()[-1].timestamp_ms
        return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=committed)

    def clear(self) -> None:
        self._spark.sql(f"DELETE FROM lake.{self.source.name}")
        self._spark.sql(
            f"CALL lake.system.expire_snapshots(table => '{self.source.name}', older_than => TIMESTAMP '2100-01-01', "
            "retain_last => 1)"
        ).collect()


class TestIcebergTable(Behaviour):
    holds = True

    @pytest.fixture
    def place(self, session: SparkSession, spark_server: SparkServer) -> Iterator[Place]:
        uri = f"sqlite:///{spark_server.catalog_db}"
        with IcebergTables.connect(uri, spark_server.warehouse.as_uri()) as tables:
            yield Table(session, tables)


class Topic:
    catalog = None

    def __init__(self, broker: Broker) -> None:
        self._broker, name = broker, broker.topic(2)
        entered = Limits(), broker.user_credentials
        broker.allow(USER, AclOperation.READ, name)
        self.source, self.absent = (Kafka(each, schema=SCHEMA).within(*entered) for each in (name, f"{name}-absent"))

    def arrive(self, *numbers: int) -> datetime:
        name = self.source.topic
        self._broker.send(name, *({"value": json.dumps({"n": n}).encode(), "partition": n % 2} for n in numbers))
        return datetime.now(timezone.utc)

    def clear(self) -> None:
        everything = [TopicPartition(self.source.topic, partition, -1) for partition in range(2)]
        admin = self._broker.admin()
        for answer in admin.delete_records(everything).values():
            answer.result(self._broker.patience)


class TestKafka(Behaviour):
    @pytest.fixture
    def place(self, kafka: Broker) -> Place:
        return Topic(kafka)


class Records:
    """A table of a database."""

    def __init__(self, database: Database, warehouse: Path) -> None:
        self._database, self.catalog = database, Beside(warehouse)
        database.run("CREATE TABLE records (n BIGINT PRIMARY KEY)")
        self.source, self.absent = (database.source(f"public.{table}") for table in ("records", "absent"))

    def arrive(self, *numbers: int) -> datetime:
        for number in numbers:
            self._database.run(f"INSERT INTO records VALUES ({number})")
        return datetime.now(timezone.utc)

    def clear(self) -> None:
        drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = "
        self._database.run(f"{drop}current_database()", "DROP TABLE IF EXISTS records")


class TimedRows:
    """A table whose rows tell when they were changed last."""

    def __init__(self, database: Database, warehouse: Path) -> None:
        self._database, self.catalog = database, Beside(warehouse)
        database.run("CREATE TABLE records (n BIGINT PRIMARY KEY, at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp())")
        self.source, self.absent = (
            database.rows_source(f"public.{table}", margin=timedelta(0)) for table in ("records", "absent")
        )

    def arrive(self, *numbers: int) -> datetime:
        for number in numbers:
            self._database.run(f"INSERT INTO records VALUES ({number})")
        return datetime.now(timezone.utc)

    def clear(self) -> None:
        self._database.run("DROP TABLE IF EXISTS records")


class TestPostgreSQL(Behaviour):
    holds = True

    @pytest.fixture
    def place(self, postgresql: PostgreSQL, spark_server: SparkServer) -> Iterator[Place]:
        with database_of(postgresql) as database:
            yield Records(database, spark_server.warehouse / uuid4().hex)

    def give_up(self, place: Place, cut: Cut) -> None:
        """The oldest barrier that is left begins where the cut ends."""
        place.source.let_go(replace(cut, start=cut.end), place.catalog)


class TestPostgreSQLRows(TestPostgreSQL):
    @pytest.fixture
    def place(self, postgresql: PostgreSQL, spark_server: SparkServer) -> Iterator[Place]:
        with database_of(postgresql) as database:
            yield TimedRows(database, spark_server.warehouse / uuid4().hex)


class Events:
    """A stream."""

    def __init__(self, server: Pravega, warehouse: Path) -> None:
        self._server, self.catalog = server, Beside(warehouse)
        self.source, self.absent = (source_of(server, name) for name in (server.stream(2), "absent"))

    def arrive(self, *numbers: int) -> datetime:
        self._server.write(self.source.stream, [(str(n), json.dumps({"n": n}).encode()) for n in numbers])
        return datetime.now(timezone.utc)

    def clear(self) -> None:
        self._server.ask("truncate", self.source.stream, self._server.tail(self.source.stream))


class TestPravega(Behaviour):
    holds = True

    @pytest.fixture
    def place(self, pravega: Pravega, spark_server: SparkServer) -> Place:
        return Events(pravega, spark_server.warehouse / uuid4().hex)

    def give_up(self, place: Place, cut: Cut) -> None:
        """The oldest barrier that is left begins where the cut ends."""
        place.source.let_go(replace(cut, start=cut.end), place.catalog)
