"""A record that was written is read back equal, whatever is in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Column, MetaData, Table, create_engine, delete, insert, select
from sqlalchemy.engine import Connection

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.mapping import to_columns, to_record
from airflow_barrier.protocol.deliveries import DeliveryRecord, SinkDeclaration, SinkRecord
from airflow_barrier.protocol.leases import Lease
from airflow_barrier.protocol.records import Attempt, AuditEntry, Barrier, JobStart, TableProgress
from airflow_barrier.protocol.revisions import Revision, RevisionRun
from tests.support.postgresql import with_driver
from tests.support.values import Values

#: Of each record the table, the columns that are no field of it, and the fields that are no column.
KEPT: dict[type, tuple[Table, dict[str, Any], dict[str, Any]]] = {
    Barrier: (schema.barrier, {}, {}),
    TableProgress: (schema.table_progress, {}, {}),
    Attempt: (schema.attempt, {}, {}),
    AuditEntry: (schema.audit, {}, {}),
    JobStart: (schema.job_start, {"topology": "shop", "line": 0, "barrier_id": 1}, {}),
    Revision: (schema.revision, {"topology_version": 1}, {"gated": True}),
    RevisionRun: (schema.revision_run, {}, {}),
    Lease: (schema.lease, {"rollbacks": 0}, {"rolled_back": False}),
    SinkRecord: (schema.sink, {"definition": {}}, {"definition": SinkDeclaration("prices", "dag", "files", {})}),
    DeliveryRecord: (schema.delivery, {}, {}),
}
RECORDS = 40


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    engine = create_engine(with_driver(url))
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def alone(table: Table) -> Table:
    """The columns of a table without its keys: there need not be the barrier that a row is of."""
    columns = (Column(c.name, c.type, nullable=c.nullable, server_default=c.server_default) for c in table.columns)
    return Table("alone", MetaData(), *columns)


@pytest.mark.parametrize("kind", KEPT)
def test_what_was_written_is_read_back(kind: type, connection: Connection) -> None:
    table, more, none = KEPT[kind]
    table = alone(table)
    table.create(connection)
    values = Values(seed=7)
    for number in range(RECORDS):
        record = replace(values.record(kind, empty=number % 4 == 0), **none)
        columns = to_columns(kind, **{name: value for name, value in vars(record).items() if name not in none})
        connection.execute(insert(table).values(**columns, **more))
        row = connection.execute(select(table)).one()
        assert to_record(kind, row, **none) == record
        connection.execute(delete(table))


def test_every_field_has_a_column_of_its_own() -> None:
    """Two fields in one column would be read back equal where they happen to be equal only."""
    for kind, (table, more, none) in KEPT.items():
        record = Values(seed=1).record(kind, empty=False)
        columns = [
            c for name, value in vars(record).items() if name not in none for c in to_columns(kind, **{name: value})
        ]
        assert len(columns) == len(set(columns)), kind
        assert {*columns, *more} <= set(table.columns.keys()), kind
