"""Revisions of a time that a MetaService has lost: published in it again, as their tables are, or only numbered."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection, func, insert, select

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.cuts import cuts, insert_cut
from airflow_barrier.metaservice.mapping import to_columns
from airflow_barrier.metaservice.revision_rows import load_revision, move
from airflow_barrier.metaservice.rows import barrier_key, load_barrier, topology_version
from airflow_barrier.metaservice.schema import DatabaseNow
from airflow_barrier.metaservice.swapping import finish_swap, forget_line
from airflow_barrier.metaservice.topologies import version_of
from airflow_barrier.metaservice.transitions import Event, record
from airflow_barrier.protocol.errors import UnknownRevisionError
from airflow_barrier.protocol.journal import History, JournalEntry, RevisionEntry
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import Revision, RevisionMode, RevisionState
from airflow_barrier.protocol.states import BarrierState, TableState

_TABLE = schema.revision


def publish_again(connection: Connection, history: History, entry: RevisionEntry, event: Event) -> None:
    """Let what the revision computed stand, at barriers that are COMMIT. What it replaced is kept as by any publish."""
    try:
        known = load_revision(connection, history.topology, entry.number)
    except UnknownRevisionError:
        known = None
    if known is None or known.state is not RevisionState.COMMITTING:
        known = _decide(connection, history, entry, known, event)
        for each in entry.entries:
            if not each.is_maintenance:  # it has the rows of the one below it
                _stage(connection, history, entry, each)
    finish_swap(connection, known, event.actor)


def use_up_number(connection: Connection, history: History, event: Event) -> None:
    """A revision that was given up with the lost time keeps its number, by which its stamps and branches are called."""
    newest = connection.execute(
        select(func.coalesce(func.max(_TABLE.c.revision), 0)).where(_TABLE.c.topology == history.topology)
    ).scalar_one()
    if newest >= history.newest_revision:
        return
    connection.execute(
        insert(_TABLE).values(
            topology=history.topology,
            revision=history.newest_revision,
            state=RevisionState.CANCELLED.value,
            mode=RevisionMode.INCREMENTAL.value,
            first_barrier=0,
            predecessor=0,
            window_end=0,
            tables=[],
            jobs=[],
            changed=[],
            corrections=[],
            reused=[],
            recut=[],
            topology_version=topology_version(connection, history.topology),
            expected={},
            actor=event.actor,
            reason="begun in a time that the MetaService has lost; its number is not used again",
            created_at=DatabaseNow(),
            cancelled_at=DatabaseNow(),
        )
    )
    _record(connection, history, history.newest_revision, RevisionState.CANCELLED, event)


def _decide(
    connection: Connection, history: History, entry: RevisionEntry, known: Revision | None, event: Event
) -> Revision:
    """The revision COMMITTING, with nothing in its line."""
    # what was open beside the committed barriers then is given up by now, or has an entry of its own
    decided = replace(entry.revision, state=RevisionState.COMMITTING, last=entry.revision.head)
    if known is not None:
        forget_line(connection, known)
        values = to_columns(Revision, head=decided.head, last=decided.last, expected=decided.expected)
        return move(connection, known, RevisionState.COMMITTING, event, **values, committing_at=DatabaseNow())
    version = version_of(connection, history.topologies[entry.head.topology_digest])
    values = {name: value for name, value in vars(decided).items() if name != "gated"}
    connection.execute(insert(_TABLE).values(topology_version=version, **to_columns(Revision, **values)))
    _record(connection, history, entry.number, RevisionState.COMMITTING, event)
    return load_revision(connection, history.topology, entry.number)


def _stage(connection: Connection, history: History, entry: RevisionEntry, revised: JournalEntry) -> None:
    """A barrier in the line of the revision, as it was when that was decided."""
    topology, barrier_id = revised.topology, revised.barrier_id
    key = barrier_key(topology, barrier_id, entry.number)
    connection.execute(
        insert(schema.barrier).values(
            **key,
            timestamp=revised.timestamp,
            state=BarrierState.PRECOMMIT.value,
            predecessor=revised.predecessor,
            topology_version=version_of(connection, history.topologies[revised.topology_digest]),
            **to_columns(Barrier, kind=revised.kind, run=revised.run, timestamp_from=revised.timestamp_from),
            opened_at=DatabaseNow(),
            computed_in=entry.number,
        )
    )
    rows = [
        {
            **key,
            "table_name": name,
            "job": row.job,
            "state": TableState.PROCESSED.value,
            "snapshot_id": row.snapshot_id,
            "carried_from": row.carried_from,
            "expected_snapshot": row.expected_snapshot,
        }
        for name, row in sorted(revised.tables.items())
        if name in entry.revision.tables
    ]
    if rows:
        connection.execute(insert(schema.table_progress).values(processed_at=DatabaseNow()), rows)
    barrier = load_barrier(connection, topology, barrier_id, entry.number)
    standing = cuts(connection, topology, barrier_id)
    for source, cut in revised.cuts.items():
        if cut != standing[source]:
            insert_cut(connection, barrier, cut)


def _record(connection: Connection, history: History, number: int, state: RevisionState, event: Event) -> None:
    record(connection, event, history.topology, None, "revision", [str(number)], None, state.value, revision=number)
