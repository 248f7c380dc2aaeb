"""A long history in seconds: one barrier that was really run, copied within the database, row for row."""

from __future__ import annotations

from sqlalchemy import Connection, Table, func, select, text

from airflow_barrier.metaservice import schema

#: Parents first.
_TABLES = (schema.barrier, schema.table_progress, schema.cut, schema.cut_item, schema.attempt, schema.audit)


def multiply(connection: Connection, template: int, last: int) -> int:
    """Copy the newest barrier of the only topology, which is COMMIT, to every number up to ``last``. Returns how many
    rows there are then.
    """
    postgresql = connection.dialect.name == "postgresql"
    later = f"(n.i - {template})"
    attempts, audits = (_count(connection, table, template) for table in (schema.attempt, schema.audit))
    copies = {
        "barrier_id": "n.i",
        "predecessor": "n.i - 1",
        "timestamp": f"timestamp + {later} * interval '1 day'"
        if postgresql
        else f"strftime('%Y-%m-%d %H:%M:%S', timestamp, {later} || ' days') || '.000000'",
        "run_id": "'scheduled__' || n.i",
        "item": "'file ' || n.i",
        "attempt_id": f"attempt_id + {later} * {attempts}",
        "audit_id": f"audit_id + {later} * {audits}",
        "snapshot_id": f"snapshot_id + {later}",
        "subject": f"CASE kind WHEN 'barrier' THEN CAST(n.i AS TEXT) WHEN 'attempt' THEN "
        f"CAST(CAST(subject AS BIGINT) + {later} * {attempts} AS TEXT) ELSE subject END",
    }
    numbers = f"n(i) AS (SELECT {template + 1} UNION ALL SELECT i + 1 FROM n WHERE i < {last})"
    if postgresql:  # copies refer to copies: looking up each would take most of the time
        connection.execute(text("SET LOCAL session_replication_role = replica"))
    for table in _TABLES:
        columns = [column.name for column in table.columns]
        values = ", ".join(copies.get(name, name) for name in columns)
        rows = f"t AS MATERIALIZED (SELECT * FROM {table.name} WHERE barrier_id = {template})"
        statement = f"INSERT INTO {table.name} ({', '.join(columns)}) SELECT {values} FROM n, t"
        connection.execute(text(f"WITH RECURSIVE {numbers}, {rows} {statement}"))
    if postgresql:
        for table in (schema.attempt, schema.audit):
            (key,) = table.primary_key.columns
            newest = select(func.max(key)).scalar_subquery()
            connection.execute(select(func.setval(func.pg_get_serial_sequence(table.name, key.name), newest)))
    return sum(connection.execute(select(func.count()).select_from(table)).scalar_one() for table in _TABLES)


def _count(connection: Connection, table: Table, template: int) -> int:
    """How many rows the barrier has, whose ids leave no gaps between copies."""
    (key,) = table.primary_key.columns
    found = list(connection.execute(select(key).where(table.c.barrier_id == template).order_by(key)).scalars())
    assert found == list(range(found[0], found[0] + len(found)))
    return len(found)
