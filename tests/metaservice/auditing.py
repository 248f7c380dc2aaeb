"""Whether the audit accounts for every state in the database: told from the rows alone, whatever the test did."""

from __future__ import annotations

from sqlalchemy import Connection, select

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.database import Database

#: What a thing is before its first audit row says otherwise: tables of a barrier are PENDING as it is opened.
_FIRST = {"barrier": None, "attempt": None, "table": "PENDING", "revision": None, "sink": None}
#: Kind, topology, line, barrier, subject. An attempt keeps its number in whichever line it comes to be.
_Thing = tuple[str, str, int, int | None, str]


def check_audit(url: str) -> None:
    """Replay the audit: each entry starts where the last one for the same thing ended, and all ends as stored."""
    database = Database(url, create=False)
    try:
        database.read(check_audit_in)
    finally:
        database.close()


def check_audit_in(connection: Connection) -> None:
    stored, (replayed, forgotten) = _stored(connection), _replayed(connection)
    for thing, state in stored.items():
        kind = thing[0]
        assert replayed.get(thing, _FIRST[kind]) == state, (
            f"{thing}: audit ends with {replayed.get(thing)}, not {state}"
        )
    more = set(replayed) - set(stored) - forgotten
    assert not more, f"the audit speaks of things that are not there: {more}"


def _stored(connection: Connection) -> dict[_Thing, str]:
    barrier, table, attempt, revision, sink = (
        each.c for each in (schema.barrier, schema.table_progress, schema.attempt, schema.revision, schema.sink)
    )
    found: dict[_Thing, str] = {}
    for row in connection.execute(
        # below zero are copies of what stood
        select(barrier.topology, barrier.line, barrier.barrier_id, barrier.state).where(barrier.line >= 0)
    ):
        found["barrier", row.topology, row.line, row.barrier_id, str(row.barrier_id)] = row.state
    for row in connection.execute(select(table.topology, table.line, table.barrier_id, table.table_name, table.state)):
        found["table", row.topology, row.line, row.barrier_id, row.table_name] = row.state
    for row in connection.execute(select(attempt.topology, attempt.barrier_id, attempt.attempt_id, attempt.state)):
        found["attempt", row.topology, 0, row.barrier_id, str(row.attempt_id)] = row.state
    for row in connection.execute(select(revision.topology, revision.revision, revision.state)):
        found["revision", row.topology, row.revision, None, str(row.revision)] = row.state
    for row in connection.execute(select(sink.topology, sink.name, sink.state)):
        found["sink", row.topology, 0, None, row.name] = row.state
    return found


def _replayed(connection: Connection) -> tuple[dict[_Thing, str], set[_Thing]]:
    """Thing -> its state, and those of a published revision that are not looked for: what was aborted in it is gone."""
    audit = schema.audit
    states: dict[_Thing, str] = {}
    of_line: dict[tuple[str, int], set[_Thing]] = {}
    forgotten: set[_Thing] = set()
    for row in connection.execute(select(audit).order_by(audit.c.audit_id)):
        assert row.actor
        assert row.at is not None
        if row.kind not in _FIRST:
            continue
        line = 0 if row.kind == "attempt" else row.revision
        thing = (row.kind, row.topology, line, None if row.kind == "sink" else row.barrier_id, row.subject)
        # A table's baseline is written as it joins: it has no state before. Nor has what maintenance carries anew.
        anew = row.barrier_id == 0 or (row.event == "revised" and row.revision == 0)
        before = states.get(thing, None if anew else _FIRST[row.kind])
        assert row.state_before == before, f"{thing}: entry {row.audit_id} starts at {row.state_before}, not {before}"
        states[thing] = row.state_after
        of_line.setdefault((row.topology, row.revision), set()).add(thing)
        if row.kind == "barrier" and row.event == "revised":
            _exchange(states, row.topology, row.barrier_id, row.detail["revision"], row.detail["tables"])
        if row.kind == "revision" and row.state_after == "COMMIT":
            forgotten |= {each for each in of_line[row.topology, row.revision] if each[0] != "revision"}
    return states, forgotten


def _exchange(states: dict[_Thing, str], topology: str, barrier_id: int, number: int, tables: list[str]) -> None:
    """What stood at a barrier is in line -r from here on, and what is in line r stands."""
    for table in tables:
        for line, other in ((0, -number), (number, 0)):
            state = states.pop(("table", topology, line, barrier_id, table), None)
            if state is not None:
                states["table", topology, other, barrier_id, table] = state
