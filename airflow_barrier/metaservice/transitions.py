"""The only places that change a state: each a compare-and-set, each with its audit row in the same transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, update

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.database import insert_last
from airflow_barrier.metaservice.mapping import to_record
from airflow_barrier.metaservice.rows import STANDING, chunks, is_complete, of_barrier
from airflow_barrier.metaservice.schema import DatabaseNow
from airflow_barrier.protocol.errors import IllegalTransitionError
from airflow_barrier.protocol.records import Attempt, Barrier
from airflow_barrier.protocol.secrets import without_secrets
from airflow_barrier.protocol.states import AttemptState, BarrierState, TableState, check_transition

_AUDIT = insert(schema.audit).values(at=DatabaseNow())


@dataclass(frozen=True)
class Event:
    """An event that changes something, for the audit: its name, who caused it, and what else is worth knowing."""

    name: str
    actor: str
    detail: Mapping[str, Any] | None = None


def move_barrier(connection: Connection, barrier: Barrier, after: BarrierState, event: Event, **values: Any) -> Barrier:
    """The barrier in its next state; ``values`` are further columns to set."""
    check_transition(str(barrier), barrier.state, after)  # safety: moves-are-transitions
    table = schema.barrier
    moved = connection.execute(
        update(table)
        .where(
            of_barrier(table, barrier.topology, barrier.barrier_id, barrier.line),
            table.c.state == barrier.state.value,  # safety: compare-and-set
        )
        .values(state=after.value, **values)
        .returning(table)
    ).all()
    _check_count(str(barrier), barrier.state.value, len(moved), 1)  # safety: lost-race-is-noticed
    record(  # safety: audited
        connection,
        event,
        barrier.topology,
        barrier.barrier_id,
        "barrier",
        [str(barrier.barrier_id)],
        barrier.state.value,
        after.value,
        revision=barrier.line,
    )
    return to_record(Barrier, moved[0])


def precommit_if_complete(connection: Connection, barrier: Barrier, actor: str) -> Barrier:
    """An OPEN barrier is PRECOMMIT once its own tables are PROCESSED.

    A table that an earlier barrier still lacks is not among them (its job has left), and the commit, which goes in
    order, waits for that one.
    """
    if is_complete(connection, barrier):  # safety: precommit-needs-all-tables
        return move_barrier(
            connection, barrier, BarrierState.PRECOMMIT, Event("precommit", actor), precommit_at=DatabaseNow()
        )
    return barrier


def move_tables(
    connection: Connection,
    barrier: Barrier,
    tables: Sequence[str],
    before: TableState,
    after: TableState,
    event: Event,
    **values: Any,
) -> None:
    """All of ``tables`` at a barrier from one state to the next."""
    what = f"{barrier}: tables {', '.join(tables)}"
    check_transition(what, before, after)  # safety: moves-are-transitions
    table = schema.table_progress
    changed = sum(
        connection.execute(
            update(table)
            .where(
                of_barrier(table, barrier.topology, barrier.barrier_id, barrier.line),
                table.c.table_name.in_(names),
                table.c.state == before.value,  # safety: compare-and-set
            )
            .values(state=after.value, **values)
        ).rowcount
        for names in chunks(tables)
    )
    _check_count(what, before.value, changed, len(tables))  # safety: lost-race-is-noticed
    record(  # safety: audited
        connection,
        event,
        barrier.topology,
        barrier.barrier_id,
        "table",
        tables,
        before.value,
        after.value,
        revision=barrier.line,
    )


def move_attempt(connection: Connection, attempt: Attempt, after: AttemptState, event: Event, **values: Any) -> Attempt:
    """The attempt in its next state."""
    check_transition(str(attempt), attempt.state, after)  # safety: moves-are-transitions
    table = schema.attempt
    moved = connection.execute(
        update(table)
        .where(
            table.c.attempt_id == attempt.attempt_id,
            table.c.state == attempt.state.value,  # safety: compare-and-set
        )
        .values(state=after.value, **values)
        .returning(table)
    ).all()
    _check_count(str(attempt), attempt.state.value, len(moved), 1)  # safety: lost-race-is-noticed
    record(  # safety: audited
        connection,
        event,
        attempt.topology,
        attempt.barrier_id,
        "attempt",
        [str(attempt.attempt_id)],
        attempt.state.value,
        after.value,
        revision=attempt.line,
    )
    return to_record(Attempt, moved[0])


def end_attempt(connection: Connection, attempt: Attempt, after: AttemptState, reason: str, event: Event) -> Attempt:
    """FENCED, VOIDED or ABORTED, with the reason that its reports will be refused with."""
    return move_attempt(connection, attempt, after, event, ended_at=DatabaseNow(), reason=reason)


def unstage_tables(connection: Connection, barrier: Barrier, tables: Sequence[str], event: Event) -> None:
    """PROCESSED tables PENDING again: what was staged for them no longer counts."""
    move_tables(
        connection,
        barrier,
        tables,
        TableState.PROCESSED,
        TableState.PENDING,
        event,
        snapshot_id=None,
        attempt_id=None,
        carried_from=None,
        processed_at=None,
    )


def record(
    connection: Connection,
    event: Event,
    topology: str,
    barrier_id: int | None,
    kind: str,
    subjects: Sequence[str],
    before: str | None = None,
    after: str | None = None,
    revision: int = STANDING,
) -> None:
    """One audit row for each of ``subjects``; ``revision``: in whose line that is."""
    if not subjects:
        return
    common = {
        "topology": topology,
        "revision": revision,
        "barrier_id": barrier_id,
        "kind": kind,
        "event": event.name,
        "state_before": before,
        "state_after": after,
        "actor": event.actor,
        # errors of others stand in it, too
        "detail": {k: without_secrets(v) if isinstance(v, str) else v for k, v in (event.detail or {}).items()},
    }
    insert_last(connection, _AUDIT, ({**common, "subject": subject} for subject in subjects))


def _check_count(what: str, expected: str, changed: int, wanted: int) -> None:
    if changed != wanted:
        raise IllegalTransitionError(  # safety: lost-race-is-noticed
            f"{what}: expected {wanted} in state {expected}, found {changed}; another process changed it: look again"
        )
