"""Catching up a MetaService that was lost, or restored from an older backup, from the tables and the journal."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_barrier.coordinator.committing import commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.journal import entry_uri, read_entry, read_head, read_topology, write_head
from airflow_barrier.protocol.errors import JournalError, UnknownTopologyError
from airflow_barrier.protocol.journal import History, JournalEntry, JournalHead
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.tables.port import Traces

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recovered:
    """What a recovery did.

    ``entries`` were put back, oldest first; all are COMMIT. ``newest`` is the newest decided barrier now.
    ``reattached`` are tables that the catalog had lost.
    """

    topology: str
    incarnation: str
    entries: tuple[JournalEntry, ...]
    newest: Barrier | None
    reattached: tuple[str, ...]


def recover(deployment: Deployment, topology: str, *, actor: str) -> Recovered:
    """Bring MetaService and catalog to where the tables of ``topology`` are, and take the lead with a new incarnation.

    Barriers that were in flight are given up: their epochs join the next barrier's. A barrier that was decided and not
    published is rolled forward. Stop the DAGs of the topology before, and do it
    after any restore: attempts of the time after the backup may still run, and only a new incarnation tells them from
    later ones of the same number. Again is fine.

    Raises :class:`~airflow_barrier.protocol.errors.JournalError` when the journal is missing, or tells of other
    barriers than the MetaService has committed; what :func:`commit_barrier` raises if a table is in the way.
    """
    head = read_head(deployment, topology)
    if head is None:
        raise JournalError(  # safety: recovers-by-a-journal
            f"topology {topology}: expected a journal beside its tables, found none at "
            f"{entry_uri(deployment, topology, 0).rpartition('/')[0]}; is the warehouse of the connection the right "
            "one, and the name of the topology? Without a journal the MetaService cannot be rebuilt"
        )
    committed = _newest_committed(deployment, topology)
    newest, reattached = _newest_entry(deployment, topology, head)
    entries = _entries_after(deployment, topology, newest, committed)
    traces = {table: deployment.tables.traces(table, topology) for table in _tables(deployment, topology, newest)}
    digests = {entry.topology_digest for entry in entries}
    history = History(
        topology=topology,
        entries=entries,
        topologies={digest: read_topology(deployment, topology, digest) for digest in digests},
        published=_published(entries, traces),
        above_attempt=max((trace.newest_attempt for trace in traces.values()), default=0),
    )
    incarnation = deployment.meta.recover(history, actor)
    write_head(deployment, topology, JournalHead(incarnation, newest.barrier_id if newest else 0))
    log.info("topology %s: MetaService incarnation %s leads it now", topology, incarnation)
    if newest is not None:
        commit_barrier(deployment, topology, newest.barrier_id, actor=actor)
    for entry in entries:
        log.info("%s is COMMIT again", entry)
    _expire_untagged(deployment, topology, traces, actor)  # safety: recovered-without-tags-is-expired
    return Recovered(topology, incarnation, entries, deployment.meta.newest_decided(topology), reattached)


def _expire_untagged(deployment: Deployment, topology: str, traces: Mapping[str, Traces], actor: str) -> None:
    """What lost its tags in the lost time cannot be read any more, whatever a backup says."""
    meta = deployment.meta
    somewhere = frozenset[int]().union(*(trace.tagged for trace in traces.values()))
    untagged = [
        barrier.barrier_id
        for barrier in meta.readable(topology)
        if barrier.barrier_id not in somewhere
        or any(
            row.snapshot_id is not None and row.table in traces and barrier.barrier_id not in traces[row.table].tagged
            for row in meta.progress(topology, barrier.barrier_id)
        )
    ]
    meta.expired(topology, meta.expiring(topology, untagged, actor), actor)


def _newest_committed(deployment: Deployment, topology: str) -> Barrier | None:
    """What the MetaService still knows to be COMMIT: there the history that it lacks begins."""
    try:
        decided = deployment.meta.newest_decided(topology)
    except UnknownTopologyError:
        return None
    while decided is not None and decided.state is not BarrierState.COMMIT:
        decided = deployment.meta.barrier(topology, decided.predecessor or 0)
    return decided


def _newest_entry(
    deployment: Deployment, topology: str, head: JournalHead
) -> tuple[JournalEntry | None, tuple[str, ...]]:
    """The newest barrier that has an entry, and the tables that the catalog had to be told of.

    The head may lag, since of two committers one that was suspended may have written it last: the tables' tags say.
    """
    if head.barrier_id == 0:
        return None, ()
    entry = read_entry(deployment, topology, head.barrier_id)
    reattached = _reattach(deployment, entry)
    tagged = max(deployment.tables.traces(table, topology).published for table in entry.tables)
    if tagged <= entry.barrier_id:
        return entry, reattached
    entry = read_entry(deployment, topology, tagged)
    return entry, (*reattached, *_reattach(deployment, entry))


def _entries_after(
    deployment: Deployment, topology: str, newest: JournalEntry | None, committed: Barrier | None
) -> tuple[JournalEntry, ...]:
    """The entries that the MetaService lacks, oldest first: from the newest back to what it has committed."""
    known = committed.barrier_id if committed is not None else 0
    found: list[JournalEntry] = []
    barrier_id = newest.barrier_id if newest is not None else 0
    while barrier_id > known:
        found.append(read_entry(deployment, topology, barrier_id))
        barrier_id = found[-1].predecessor
    if barrier_id != known:
        raise JournalError(  # safety: journal-leads-back
            f"topology {topology}: expected the journal to lead back to barrier {known}, which the MetaService at "
            f"{deployment.meta.url} has committed, found that it leads to barrier {barrier_id}: this MetaService is "
            "of another deployment; correct the connection"
        )
    if known:
        _check_agreement(deployment, topology, known)
    return tuple(reversed(found))


def _check_agreement(deployment: Deployment, topology: str, barrier_id: int) -> None:
    """The newest barrier that both have must be the same one."""
    entry = read_entry(deployment, topology, barrier_id)
    journal = {name: table.snapshot_id for name, table in entry.tables.items()}
    service = {row.table: row.snapshot_id for row in deployment.meta.progress(topology, barrier_id)}
    if journal != service:
        different = sorted(name for name in journal.keys() | service.keys() if journal.get(name) != service.get(name))
        raise JournalError(  # safety: journal-agrees
            f"{entry}: expected the same snapshots in the journal and in the MetaService at {deployment.meta.url}, "
            f"found others of {', '.join(different)}: this MetaService is of another deployment; correct the connection"
        )


def _reattach(deployment: Deployment, newest: JournalEntry) -> tuple[str, ...]:
    """Where the catalog went with the MetaService, let it point to the tables' newest state again."""
    reattached = [
        name
        for name, table in newest.tables.items()
        if deployment.tables.reattach(name, table.metadata, table.snapshot_id)
    ]
    for name in reattached:
        log.info("table %s: the catalog points to its newest metadata again", name)
    return tuple(reattached)


def _tables(deployment: Deployment, topology: str, newest: JournalEntry | None) -> Sequence[str]:
    """Where attempts of the lost time may have left traces."""
    return tuple(newest.tables) if newest is not None else deployment.meta.topology(topology).tables


def _published(entries: Sequence[JournalEntry], traces: Mapping[str, Traces]) -> int:
    """Up to which barrier the tables were published: the last entry may be of one that was decided only.

    A person may have dropped a tag: then the barrier is published again, which changes nothing but the tag.
    """
    if not entries:
        return 0
    newest = entries[-1]
    with_tag = (name for name, table in newest.tables.items() if table.snapshot_id is not None)
    if all(traces[name].published >= newest.barrier_id for name in with_tag):
        return newest.barrier_id
    return newest.predecessor
