"""Whether the audit accounts for every state in the database: told from the rows alone, whatever the test did."""

from __future__ import annotations

from sqlalchemy import Connection, select

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.database import Database

#: What a thing is before its first audit row says otherwise: tables of a barrier are PENDING as it is opened.
_FIRST = {"barrier": None, "attempt": None, "table": "PENDING"}


def check_audit(url: str) -> None:
    """Replay the audit: each entry starts where the last one for the same thing ended, and all ends as stored."""
    database = Database(url, create=False)
    try:
        database.read(check_audit_in)
    finally:
        database.close()


def check_audit_in(connection: Connection) -> None:
    stored, replayed = _stored(connection), _replayed(connection)
    for thing, state in stored.items():
        kind = thing[0]
        assert replayed.get(thing, _FIRST[kind]) == state, (
            f"{thing}: audit ends with {replayed.get(thing)}, not {state}"
        )
    assert set(replayed) <= set(stored), "the audit speaks of things that are not there"


def _stored(connection: Connection) -> dict[tuple[str, str, int, str], str]:
    barrier, table, attempt = schema.barrier.c, schema.table_progress.c, schema.attempt.c
    found: dict[tuple[str, str, int, str], str] = {}
    for row in connection.execute(select(barrier.topology, barrier.barrier_id, barrier.state)):
        found["barrier", row.topology, row.barrier_id, str(row.barrier_id)] = row.state
    for row in connection.execute(select(table.topology, table.barrier_id, table.table_name, table.state)):
        found["table", row.topology, row.barrier_id, row.table_name] = row.state
    for row in connection.execute(select(attempt.topology, attempt.barrier_id, attempt.attempt_id, attempt.state)):
        found["attempt", row.topology, row.barrier_id, str(row.attempt_id)] = row.state
    return found


def _replayed(connection: Connection) -> dict[tuple[str, str, int, str], str]:
    audit = schema.audit
    states: dict[tuple[str, str, int, str], str] = {}
    for row in connection.execute(select(audit).order_by(audit.c.audit_id)):
        assert row.actor
        assert row.at is not None
        if row.kind not in _FIRST:
            continue
        thing = (row.kind, row.topology, row.barrier_id, row.subject)
        # A table's baseline is written as it joins: it has no state before.
        before = states.get(thing, None if row.barrier_id == 0 else _FIRST[row.kind])
        assert row.state_before == before, f"{thing}: entry {row.audit_id} starts at {row.state_before}, not {before}"
        states[thing] = row.state_after
    return states
