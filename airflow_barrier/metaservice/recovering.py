"""Rebuilding a MetaService that was lost, or restored from an older backup, from what its barriers left behind."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from uuid import uuid4

from sqlalchemy import Connection, Table, delete, func, insert, select, text, update

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.barriers import abort_one, insert_baseline
from airflow_barrier.metaservice.cuts import insert_cut
from airflow_barrier.metaservice.mapping import to_columns
from airflow_barrier.metaservice.recovering_revisions import publish_again, use_up_number
from airflow_barrier.metaservice.revision_rows import under_way
from airflow_barrier.metaservice.rows import (
    attempts_of,
    barrier_key,
    load_barrier,
    lock_topology,
    newest,
    of_barrier,
    of_topology,
    progress,
    uncommitted,
)
from airflow_barrier.metaservice.schema import DatabaseNow
from airflow_barrier.metaservice.swapping import cancel
from airflow_barrier.metaservice.topologies import adopt_topology, version_of
from airflow_barrier.metaservice.transaction import Group, changes
from airflow_barrier.metaservice.transitions import Event, end_attempt, record
from airflow_barrier.protocol.errors import JournalError
from airflow_barrier.protocol.journal import History, JournalEntry
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import RevisionState
from airflow_barrier.protocol.states import (
    LIVE_ATTEMPTS,
    STAGING_BARRIERS,
    AttemptState,
    BarrierState,
    TableState,
)

log = logging.getLogger(__name__)

#: Attempts of the lost time that left no trace keep numbers of their own: new ones begin that far above.
_MARGIN = 1000
#: Nobody can tell how many leases the lost time has granted: fewer than that.
_LEASES = 1_000_000_000
#: What is written of a barrier that nobody can read any more, from its tag policy's word to its trimming.
_ENDED = ("thinned_at", "expiring_at", "expired_at", "trimmed_at")
_REASON = "the MetaService was recovered: what was in flight is lost, and its epoch joins the next barrier's"


class Recovery(Group):
    """The recovery of a database that was lost, or restored from an older backup."""

    @changes
    def put_back(self, connection: Connection, history: History, actor: str, reason: str) -> str:
        """Put back what the database has lost of a topology, give up what was in flight; returns its new incarnation.

        ``history`` begins after the newest barrier that is COMMIT here. Raises JournalError if it does not.
        """
        event = Event("recovered", actor, {"published": history.published, "reason": reason})
        epochs = [entry for entry in history.entries if not entry.is_maintenance]
        if epochs:
            adopt_topology(connection, history.topologies[epochs[-1].topology_digest])
        lock_topology(connection, history.topology)  # safety: topology-lock
        if history.entries and newest(connection, history.topology, BarrierState) is None:
            oldest = history.topologies[history.entries[0].topology_digest]
            insert_baseline(connection, history.topology, version_of(connection, oldest), actor)
            _complete_baseline(connection, history.topology, history.baseline, event)
        decided = {entry.barrier_id for entry in history.entries}
        for barrier in uncommitted(connection, history.topology):
            if barrier.state in STAGING_BARRIERS and barrier.barrier_id not in decided:
                abort_one(connection, barrier, f"{_REASON}: {reason}", actor)  # safety: in-flight-is-given-up
                log.info("%s is ABORTED: %s: %s", barrier, _REASON, reason)
        _give_up_revision(connection, history, actor, reason)
        put_back = 0
        for revision in history.revisions:  # each as it was published: on the barriers that were COMMIT then
            while put_back < len(history.entries) and history.entries[put_back].barrier_id <= revision.head.barrier_id:
                _put_back(connection, history, history.entries[put_back], event)
                put_back += 1
            publish_again(connection, history, revision, event)  # safety: revisions-are-recovered
        for entry in history.entries[put_back:]:
            _put_back(connection, history, entry, event)
        use_up_number(connection, history, event)  # safety: recovered-revision-numbers-are-new
        # an attempt's number is its fencing token, and readers know leases by theirs
        _raise_numbers(connection, schema.attempt, history.above_attempt + _MARGIN)  # safety: recovered-numbers-are-new
        connection.execute(delete(schema.lease).where(of_topology(schema.lease, history.topology)))
        _raise_numbers(connection, schema.lease, _LEASES)  # safety: recovered-leases-are-new
        incarnation = uuid4().hex
        here = schema.topology.c.name == history.topology
        connection.execute(
            update(schema.topology).where(here).values(incarnation=incarnation)
        )  # safety: new-incarnation
        detail = {"incarnation": incarnation, "barriers": len(history.entries), "reason": reason}
        record(connection, Event("recovered", actor, detail), history.topology, None, "topology", [history.topology])
        return incarnation


def _give_up_revision(connection: Connection, history: History, actor: str, why: str) -> None:
    """The one that was being staged, unless the lost time has seen it published."""
    revision = under_way(connection, history.topology)
    published = {each.number for each in history.revisions}
    if revision is not None and revision.state is RevisionState.STAGING and revision.revision not in published:
        reason = f"{_REASON}: {why}"
        cancel(connection, history.topology, revision.revision, reason, actor)  # safety: staging-is-given-up
        log.info("%s is CANCELLED: %s", revision, reason)


def _put_back(connection: Connection, history: History, entry: JournalEntry, event: Event) -> None:
    """One barrier with its cuts and tables, in place of what is known of it."""
    topology, barrier_id = entry.topology, entry.barrier_id
    written = barrier_id <= history.published
    state = BarrierState.COMMIT if written else BarrierState.COMMITTING
    before = _state(connection, topology, barrier_id)
    if before is BarrierState.COMMIT:
        raise JournalError(  # safety: recovers-after-what-both-know
            f"{entry}: expected a barrier that the MetaService has not committed, found COMMIT; recover begins after "
            "the newest barrier that both agree on"
        )
    _end_attempts(connection, entry, event)
    for table in (schema.cut_item, schema.cut):
        connection.execute(delete(table).where(of_barrier(table, topology, barrier_id)))
    values = {
        "timestamp": entry.timestamp,
        "state": state.value,
        "predecessor": entry.predecessor,
        "topology_version": version_of(connection, history.topologies[entry.topology_digest]),
        **to_columns(Barrier, kind=entry.kind, run=entry.run, timestamp_from=entry.timestamp_from),
        "computed_in": entry.computed_in,
        "committing_at": DatabaseNow(),
        "commit_at": DatabaseNow() if written else None,
        **{name: DatabaseNow() if entry.trimmed else None for name in _ENDED},
        "aborted_at": None,
        "reason": None,
    }
    table = schema.barrier
    if before is None:
        connection.execute(insert(table).values(**barrier_key(topology, barrier_id), opened_at=DatabaseNow(), **values))
    else:
        connection.execute(update(table).where(of_barrier(table, topology, barrier_id)).values(**values))
    was = before.value if before is not None else None
    record(connection, event, topology, barrier_id, "barrier", [str(barrier_id)], was, state.value)
    barrier = load_barrier(connection, topology, barrier_id)
    for cut in entry.cuts.values():
        insert_cut(connection, barrier, cut)
    _put_tables_back(connection, entry, TableState.WRITTEN if written else TableState.PROCESSED, event)


def _put_tables_back(connection: Connection, entry: JournalEntry, state: TableState, event: Event) -> None:
    topology, barrier_id = entry.topology, entry.barrier_id
    table = schema.table_progress
    known = progress(connection, topology, barrier_id)
    connection.execute(delete(table).where(of_barrier(table, topology, barrier_id)))
    if not entry.tables:
        return
    connection.execute(
        insert(table).values(
            processed_at=DatabaseNow(), written_at=DatabaseNow() if state is TableState.WRITTEN else None
        ),
        [
            {
                **barrier_key(topology, barrier_id),
                "table_name": name,
                "job": decided.job,
                "state": state.value,
                "snapshot_id": decided.snapshot_id,
                "carried_from": decided.carried_from,
                "expected_snapshot": decided.expected_snapshot,
            }
            for name, decided in sorted(entry.tables.items())
        ],
    )
    for name in sorted(entry.tables):
        before = known[name].state.value if name in known else TableState.PENDING.value
        record(connection, event, topology, barrier_id, "table", [name], before, state.value)
    # of the tables that joined at this barrier the baseline is what `main` was at before it
    found = {name: table.expected_snapshot for name, table in entry.tables.items()}
    _complete_baseline(connection, topology, found, event)


def _complete_baseline(connection: Connection, topology: str, before: Mapping[str, int | None], event: Event) -> None:
    """Add what tables were at ``before`` their first barrier to the baseline, if they have none yet."""
    baseline = progress(connection, topology, 0)
    for name, snapshot in sorted((name, snapshot) for name, snapshot in before.items() if name not in baseline):
        connection.execute(
            insert(schema.table_progress).values(
                **barrier_key(topology, 0),
                table_name=name,
                state=TableState.WRITTEN.value,
                snapshot_id=snapshot,
                written_at=DatabaseNow(),
            )
        )
        record(connection, event, topology, 0, "table", [name], None, TableState.WRITTEN.value)


def _state(connection: Connection, topology: str, barrier_id: int) -> BarrierState | None:
    table = schema.barrier
    state = connection.execute(
        select(table.c.state).where(of_barrier(table, topology, barrier_id))
    ).scalar_one_or_none()
    return None if state is None else BarrierState(state)


def _end_attempts(connection: Connection, entry: JournalEntry, event: Event) -> None:
    """Void a barrier's live attempts: an older backup does not hold how they ended."""
    for attempt in attempts_of(connection, entry.topology, entry.barrier_id):
        if attempt.state in LIVE_ATTEMPTS:
            end_attempt(connection, attempt, AttemptState.VOIDED, "the MetaService was recovered", event)


def _raise_numbers(connection: Connection, table: Table, above: int) -> None:
    """Numbers of the lost time must not come back."""
    (key,) = table.primary_key.columns
    known = connection.execute(select(func.coalesce(func.max(key), 0))).scalar_one()
    last = max(above, int(known))
    if connection.dialect.name == "sqlite":
        row = {"last": last, "name": table.name}
        changed = connection.execute(
            text("UPDATE sqlite_sequence SET seq = max(seq, :last) WHERE name = :name"), row
        ).rowcount
        if not changed:
            connection.execute(text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :last)"), row)
    else:
        sequence = func.pg_get_serial_sequence(table.name, key.name)
        following = func.greatest(func.nextval(sequence), last)
        connection.execute(select(func.setval(sequence, following)))
