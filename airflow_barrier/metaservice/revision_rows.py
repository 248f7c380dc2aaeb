"""Revisions as rows, and the questions that every part asks of them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, func, select, update

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.mapping import to_record, to_records
from airflow_barrier.metaservice.rows import (
    STANDING,
    of_topology,
    progress,
    row_at,
)
from airflow_barrier.metaservice.transitions import Event, record
from airflow_barrier.protocol.errors import (
    IllegalTransitionError,
    RevisionEndedError,
    UnknownRevisionError,
)
from airflow_barrier.protocol.records import Attempt, Barrier
from airflow_barrier.protocol.revisions import (
    BY_STATEMENT,
    REVISION_TRANSITIONS,
    Revision,
    RevisionMode,
    RevisionState,
)

_TABLE = schema.revision
_UNDER_WAY = select(_TABLE).where(_TABLE.c.topology == bindparam("topology"), schema.REVISION_UNDER_WAY)


def load_revision(connection: Connection, topology: str, number: int) -> Revision:
    """Raises UnknownRevisionError."""
    row = connection.execute(_one(topology, number)).one_or_none()
    if row is None:
        newest = connection.execute(
            select(func.coalesce(func.max(_TABLE.c.revision), 0)).where(_TABLE.c.topology == topology)
        ).scalar_one()
        raise UnknownRevisionError(
            f"revision {number} of {topology}: expected one that was begun, found revisions up to {newest}; "
            f"airflow-barrier revision status {topology} lists them"
        )
    return to_record(Revision, row, gated=row.gated_at is not None)


def under_way(connection: Connection, topology: str) -> Revision | None:
    """The revision that is being staged or published; there is one at a time."""
    row = row_at(connection, _UNDER_WAY, topology=topology)
    return None if row is None else to_record(Revision, row, gated=row.gated_at is not None)


def barriers_of(connection: Connection, revision: Revision) -> list[Barrier]:
    """The revision's barriers that count, in order; none once it was published or cancelled."""
    table = schema.barrier
    rows = connection.execute(
        select(table)
        .where(of_topology(table, revision.topology, revision.revision), schema.NOT_ABORTED)
        .order_by(table.c.barrier_id)
    )
    return to_records(Barrier, rows)


def check_staging(connection: Connection, topology: str, line: int) -> None:
    """Refuse work for a revision that is not STAGING any more; in the other lines there is nothing to refuse.

    Raises RevisionEndedError.
    """
    if line <= STANDING:  # what a revision replaced has ended one by one, and says so itself
        return
    revision = load_revision(connection, topology, line)
    if revision.state is not RevisionState.STAGING:
        raise RevisionEndedError(  # safety: ended-revision-takes-nothing
            f"{revision}: expected STAGING to compute something for it, found {revision.state.value}; nothing is left "
            "to do in it: correct what is still wrong by another revision"
        )


def begins_anew(connection: Connection, attempt: Attempt) -> bool:
    """Return whether it is the first of a revision that computes its tables from the beginning."""
    if attempt.line == STANDING:
        return False
    revision = load_revision(connection, attempt.topology, attempt.line)
    return revision.mode is not RevisionMode.INCREMENTAL and attempt.barrier_id == revision.first_barrier


def corrected_bases(connection: Connection, attempt: Attempt) -> dict[str, int | None]:
    """The tables that a statement corrects, as they stand at the attempt's barrier: where nothing before it is revised,
    the statement changes them as they are, and need not be given the epoch's rows again.
    """
    if attempt.line == STANDING:
        return {}
    revision = load_revision(connection, attempt.topology, attempt.line)
    if attempt.barrier_id != revision.first_barrier or revision.mode is not RevisionMode.INCREMENTAL:
        return {}
    corrected = [
        each.table
        for each in revision.corrections
        if each.barrier_id == attempt.barrier_id and each.correction.get("kind") == BY_STATEMENT
    ]
    rows = progress(connection, attempt.topology, attempt.barrier_id, tables=corrected)
    return {table: row.snapshot_id for table, row in rows.items() if row.job == attempt.job}


def gatekeeper(connection: Connection, topology: str) -> Revision | None:
    """The revision for which no barrier may open now."""
    revision = under_way(connection, topology)
    if revision is None or not (revision.gated or revision.state is RevisionState.COMMITTING):
        return None
    return revision


def move(connection: Connection, revision: Revision, after: RevisionState, event: Event, **values: Any) -> Revision:
    """The revision in its next state; ``values`` are further columns to set."""
    if after not in REVISION_TRANSITIONS[revision.state]:
        raise IllegalTransitionError(  # safety: illegal-revision-transition
            f"{revision} is {revision.state.value} and cannot become {after.value}; look at its status"
        )
    changed = connection.execute(
        update(_TABLE)
        .where(
            *of_revision(revision.topology, revision.revision),
            _TABLE.c.state == revision.state.value,  # safety: compare-and-set
        )
        .values(state=after.value, **values)
    ).rowcount
    if changed != 1:
        raise IllegalTransitionError(  # safety: lost-race-is-noticed
            f"{revision}: expected it to be {revision.state.value}; another process changed it: look again"
        )
    record_revision(connection, revision.topology, revision.revision, revision.state, after, event)
    return load_revision(connection, revision.topology, revision.revision)


def record_revision(
    connection: Connection,
    topology: str,
    number: int,
    before: RevisionState | None,
    after: RevisionState,
    event: Event,
) -> None:
    was = None if before is None else before.value
    record(connection, event, topology, None, "revision", [str(number)], was, after.value, revision=number)


def _one(topology: str, number: int) -> Any:
    return select(_TABLE).where(*of_revision(topology, number))


def of_revision(topology: str, number: int) -> tuple[Any, ...]:
    return (_TABLE.c.topology == topology, _TABLE.c.revision == number)
