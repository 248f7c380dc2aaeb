"""What keeps a revision from being done as it is asked for, and what would work instead."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.protocol.deliveries import SinkRecord
from airflow_barrier.protocol.errors import RevisionRefusedError, SnapshotMissingError
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import RevisionMode
from airflow_barrier.protocol.topology import Job
from airflow_barrier.sinks import sink_of
from airflow_barrier.tables.schemas import check_schema


def check_readable(what: str, wanted: Wanted, barriers: Sequence[Barrier]) -> None:
    """Raise RevisionRefusedError if a replayed barrier expired: its untouched tables are read as of that barrier."""
    gone = [each for each in barriers if each.expiring_at is not None]
    if gone:
        later = [each for each in barriers if each.barrier_id > gone[-1].barrier_id]
        if wanted.mode is RevisionMode.INCREMENTAL:
            later = later[1:]  # the first of them would build on what is gone
        way = f"begin with {later[0]} or later" if later else "compute the tables anew from the sources (--full)"
        raise RevisionRefusedError(  # safety: expired-is-not-revised
            f"{what}: expected every barrier from there on within retention, found that {gone[-1]} has expired; {way}"
        )


def predecessor_of(deployment: Deployment, what: str, first: Barrier, wanted: Wanted) -> Barrier:
    predecessor = deployment.meta.barriers.get(first.topology, first.predecessor or 0)
    if predecessor.expiring_at is not None and wanted.mode is RevisionMode.INCREMENTAL:
        raise RevisionRefusedError(  # safety: expired-is-not-built-on
            f"{what}: expected the barrier before it, {predecessor}, to build on, found that it has expired; begin one "
            "barrier later, or compute the tables anew (--full)"
        )
    return predecessor


def check_can_be_cleared(deployment: Deployment, what: str, jobs: Sequence[Job], first: Barrier) -> None:
    """Everything that the tables hold can be computed from the first barrier on."""
    baseline = {row.table: row.snapshot_id for row in deployment.meta.barriers.progress(first.topology, 0)}
    for job in jobs:
        held = [outlet for outlet in job.outlets if job.externals and baseline.get(outlet) is not None]
        if held:
            raise RevisionRefusedError(  # safety: baseline-is-not-cleared
                f"{what}: expected tables whose rows all come from their sources' epochs, found that {', '.join(held)} "
                f"held rows before job {job.name} joined, which nobody can compute again; leave out --full"
            )


def check_schemas(deployment: Deployment, jobs: Sequence[Job], barriers: Sequence[Barrier]) -> None:
    """The epochs fit into the tables as they are now. Raises SchemaChangedError, SnapshotMissingError."""
    rows = [deployment.meta.barriers.progress(each.topology, each.barrier_id) for each in barriers]
    for table in sorted({table for job in jobs for table in (*job.outlets, *job.inlets)}):
        snapshots = dict.fromkeys(row.snapshot_id for tables in rows for row in tables if row.table == table)
        check_schema(table, deployment.tables.schema_faults(table, list(snapshots)))


def cannot_correct(sink: SinkRecord, tables: Collection[str]) -> str | None:
    """Return the reason why a sink cannot take corrections of these tables, once it received them; None: it can, or
    gets none.
    """
    touched = sorted(set(sink.definition.targets) & set(tables))
    fault = sink_of(sink.definition).corrections_fault(sink.definition) if touched else None
    return fault and f"expected sinks that can take corrections of {', '.join(touched)}, found {sink}: {fault}"


def check_sinks(deployment: Deployment, what: str, topology: str, tables: Collection[str], first_barrier: int) -> None:
    """Sinks that have received what is computed again can take the correction; asked again when it is published."""
    for sink in deployment.meta.deliveries.of(topology):
        if sink.barrier_id is None or sink.barrier_id < first_barrier:
            continue
        fault = cannot_correct(sink, tables)
        if fault is not None:
            raise RevisionRefusedError(  # safety: corrections-reach-sinks
                f"{what}: {fault}, and it has received {sink.position}. To have it keep what it has, take it out of "
                f"DAG {sink.owner} and let go of it: airflow-barrier sink release {topology} {sink.name} --reason ..."
            )


def check_bases(
    deployment: Deployment,
    what: str,
    mode: RevisionMode,
    jobs: Sequence[Job],
    predecessor: Barrier,
    barriers: Sequence[Barrier],
) -> None:
    """Check that what the jobs build on is there, and every step of what they read.

    Barriers have tags, but what a table held when it joined has none, nor have the steps between two barriers.
    """
    meta, tables, full = deployment.meta, deployment.tables, mode is not RevisionMode.INCREMENTAL
    written = {outlet for job in jobs for outlet in job.outlets}
    read = {table for job in jobs for table in job.inlets} - written
    baseline = {row.table: row.snapshot_id for row in meta.barriers.progress(predecessor.topology, 0)}
    start = barriers[0] if full else predecessor
    stood = {
        **baseline,
        **{row.table: row.snapshot_id for row in meta.barriers.progress(start.topology, start.barrier_id)},
    }
    needed = [(table, stood.get(table), table in read) for table in sorted(read if full else written | read)]
    if not full:
        names = {job.name for job in jobs}
        came_back = meta.starts.to_read(start.topology, revised_from=barriers[0].barrier_id)
        needed += [(*each, True) for back in came_back if back.job in names for each in sorted(back.previous.items())]
    for table, base, steps in needed:
        if base is None:
            continue
        try:
            tables.documents_at({table: base})
            there = not steps or tables.has_steps_since(table, base)
        except SnapshotMissingError:
            there = False
        if not there:
            raise RevisionRefusedError(  # safety: bases-are-there
                f"{what}: expected {table} as it was just before, and every step of it since, found that some of that "
                "has expired; begin one barrier later, or compute the tables anew (--full)"
            )


#: How many of the newest barriers tell how often one comes.
_RECENT = 20


def pace(deployment: Deployment, wanted: Wanted, barriers: Sequence[Barrier]) -> tuple[str, ...]:
    """Return notes on whether replay is quicker than arrival. Raises RevisionRefusedError if it is not, and nobody
    accepts a pause.
    """
    recent = [each for each in barriers[-_RECENT:] if each.commit_at is not None]
    if len(recent) < 3:
        return ()
    took = _median([(each.commit_at - each.opened_at).total_seconds() for each in recent if each.commit_at])
    # by their timestamps: what opens in quick succession is a backlog, which ends
    gaps = [(b.timestamp - a.timestamp).total_seconds() for a, b in pairwise(recent)]
    arrival = _median(gaps)
    if took < arrival:
        return ()
    said = f"a barrier takes {took:.0f} s to compute (median), and one comes every {arrival:.0f} s"
    if wanted.accept_pause:
        return (
            f"{said}: opening pauses while {len(barriers)} barriers are replayed, some {took * len(barriers):.0f} s",
        )
    raise RevisionRefusedError(  # safety: replay-catches-up
        f"revision of {wanted.topology}: expected to replay barriers faster than they come, found that {said}; accept "
        "that no barrier opens until it is published (--accept-pause), or begin later"
    )


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
