"""Catching up a MetaService that was lost, or restored from an older backup, from the tables and the journal."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_barrier.coordinator.committing import commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.journal import (
    entry_uri,
    read_head,
    read_revision,
    read_topology,
    write_head,
)
from airflow_barrier.coordinator.revisions.publish import publications_of
from airflow_barrier.coordinator.trimmed_journal import JournalReader
from airflow_barrier.metaservice.swapping import SwapRows
from airflow_barrier.protocol.errors import JournalError, UnknownTopologyError
from airflow_barrier.protocol.journal import History, JournalEntry, JournalHead, RevisionEntry
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import RevisionState
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.tables.port import Traces

log = logging.getLogger(__name__)

#: As many revisions as a topology may have.
_ALL = 2**31 - 1
#: After so many entries the log says how far the journal is read.
_PROGRESS = 10_000


@dataclass(frozen=True)
class Recovered:
    """The result of a recovery.

    ``entries`` were put back, oldest first; all are COMMIT. ``newest`` is the newest decided barrier now.
    ``reattached`` are tables that the catalog had lost. ``revisions`` (their numbers, oldest first) are what readers
    see again; ``entries`` are as they stood before these.
    """

    topology: str
    incarnation: str
    entries: tuple[JournalEntry, ...]
    newest: Barrier | None
    reattached: tuple[str, ...]
    revisions: tuple[int, ...] = ()


def recover(deployment: Deployment, topology: str, *, actor: str, reason: str) -> Recovered:
    """Bring MetaService and catalog to where the tables of ``topology`` are, and take the lead with a new incarnation.

    Barriers and revisions that were in flight are given up: epochs join the next barrier's. What was decided and not
    published is rolled forward; only a revision of which nothing was published, and which a table is in the way of by
    now, is given up too, and its number stays used. Stop the DAGs of the topology before, and do it
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
    journal = JournalReader(deployment, topology)
    newest, reattached = _newest_entry(deployment, journal, head)
    tables = _tables(deployment, topology, newest)
    seen = deployment.tables.seen(tables)
    traces = {table: seen.traces(table, topology) for table in tables}
    revisions = _published_revisions(deployment, topology, head, newest, traces)
    entries = _entries_after(deployment, journal, newest, committed, revisions)
    digests = {entry.topology_digest for entry in (*entries, *(each for one in revisions for each in one.entries))}
    history = History(
        topology=topology,
        entries=entries,
        topologies={digest: read_topology(deployment, topology, digest) for digest in digests},
        # a revision goes over all barriers that were COMMIT
        published=max(_published(entries, traces), revisions[-1].head.barrier_id if revisions else 0),
        above_attempt=max((trace.newest_attempt for trace in traces.values()), default=0),
        revisions=revisions,
        newest_revision=max((head.revision, *(trace.newest_revision for trace in traces.values()))),
        baseline=journal.baseline,
    )
    incarnation = deployment.meta.recovery.put_back(history, actor, reason)
    _drop_given_up(deployment, topology, tuple(traces))
    standing = _newest_revision(deployment, topology)
    write_head(deployment, topology, JournalHead(incarnation, newest.barrier_id if newest else 0, standing))
    log.info("topology %s: MetaService incarnation %s leads it now", topology, incarnation)
    if newest is not None:
        commit_barrier(deployment, topology, newest.barrier_id, actor=actor)
    trimmed = sum(entry.trimmed for entry in entries)
    if trimmed:
        log.info("topology %s: %d barriers that had expired are known again", topology, trimmed)
    for entry in entries:
        if not entry.trimmed:
            log.info("%s is COMMIT again", entry)
    for revision in revisions:
        log.info("%s is COMMIT again", revision)
    _expire_untagged(deployment, topology, traces, actor)  # safety: recovered-without-tags-is-expired
    numbers = tuple(revision.number for revision in revisions)
    return Recovered(
        topology, incarnation, entries, deployment.meta.barriers.newest_decided(topology), reattached, numbers
    )


def _drop_given_up(deployment: Deployment, topology: str, tables: Sequence[str]) -> None:
    """The branches of the revision that was: there is one under way at a time, and it is the newest."""
    for revision in deployment.meta.revisions.newest(topology, 1):
        if revision.state is RevisionState.CANCELLED:
            deployment.tables.drop_revision(tables, topology, revision.revision)


def _newest_revision(deployment: Deployment, topology: str) -> int:
    """The newest that is published."""
    known = deployment.meta.revisions.newest(topology, _ALL)
    return max((each.revision for each in known if each.state is RevisionState.COMMIT), default=0)


def _expire_untagged(deployment: Deployment, topology: str, traces: Mapping[str, Traces], actor: str) -> None:
    """Expire the barriers whose tags were dropped in the lost time: they are unreadable, whatever a backup says."""
    meta = deployment.meta
    somewhere = frozenset[int]().union(*(trace.tagged for trace in traces.values()))
    untagged = [
        barrier.barrier_id
        for barrier in meta.answers.readable(topology)
        if barrier.barrier_id not in somewhere
        or any(
            row.snapshot_id is not None and row.table in traces and barrier.barrier_id not in traces[row.table].tagged
            for row in meta.barriers.progress(topology, barrier.barrier_id)
        )
    ]
    meta.expiry.expired(topology, meta.expiry.expire(topology, untagged, actor), actor)


def _published_revisions(
    deployment: Deployment,
    topology: str,
    head: JournalHead,
    newest: JournalEntry | None,
    traces: Mapping[str, Traces],
) -> tuple[RevisionEntry, ...]:
    """Return the revisions that the MetaService lacks, oldest first; the last is published if it was only decided."""
    known = _newest_revision(deployment, topology)
    # The head may lag, as for barriers: the tables' tags say.
    tagged = {number for trace in traces.values() for _, number in trace.tags}
    found: list[RevisionEntry] = []
    number = max(head.revision, known, *tagged, 0)
    while number > known:
        found.append(read_revision(deployment, topology, number))
        number = found[-1].predecessor
    if number != known:
        raise JournalError(  # safety: journal-leads-back-to-the-revision
            f"topology {topology}: expected the journal to lead back to revision {known}, which the MetaService at "
            f"{deployment.meta.url} has published, found that it leads to revision {number}: this MetaService is of "
            "another deployment; correct the connection"
        )
    found.reverse()
    # a later barrier is decided only once the revision is published
    last = found[-1] if found and newest is not None and newest.barrier_id <= found[-1].head.barrier_id else None
    if last is not None and not _publish(deployment, last, begun=last.number in tagged):
        found.pop()
    return tuple(found)


def _publish(deployment: Deployment, entry: RevisionEntry, *, begun: bool) -> bool:
    """Roll a decided revision forward; what is published stays as it is. False: nothing is, nor can it be any more.

    Going forward is the safe way: its publisher may only sleep, and catalogs without the MetaService's database would
    let it publish whenever it wakes. Where a table is in the way, it is in that one's way too.
    """
    rows = SwapRows(
        {each.barrier_id: {name: row.snapshot_id for name, row in each.tables.items()} for each in entry.entries},
        entry.bases,
    )
    publications = publications_of(deployment, entry.revision, entry.head.barrier_id, rows, entry.revision.expected)
    if not begun:
        found = [str(error) for error in deployment.tables.findings(publications).values()]
        if _was_given_up(deployment, entry):
            found.append("an earlier recovery gave it up")
        if found:
            log.warning("%s was decided, and is given up: %s", entry, "; ".join(found))
            return False
    deployment.tables.publish(publications)  # safety: decided-revision-is-published
    return True


def _was_given_up(deployment: Deployment, entry: RevisionEntry) -> bool:
    """Return True if a recovery gave the revision up, and died before the journal's head said so."""
    known = deployment.meta.revisions.newest(entry.revision.topology, _ALL)
    return any(each.revision == entry.number and each.state is RevisionState.CANCELLED for each in known)


def _newest_committed(deployment: Deployment, topology: str) -> Barrier | None:
    """Return the newest barrier that the MetaService still knows as COMMIT: there the history that it lacks begins."""
    try:
        decided = deployment.meta.barriers.newest_decided(topology)
    except UnknownTopologyError:
        return None
    while decided is not None and decided.state is not BarrierState.COMMIT:
        decided = deployment.meta.barriers.get(topology, decided.predecessor or 0)
    return decided


def _newest_entry(
    deployment: Deployment, journal: JournalReader, head: JournalHead
) -> tuple[JournalEntry | None, tuple[str, ...]]:
    """The newest barrier that has an entry, and the tables that the catalog had to be told of.

    The head may lag, since of two committers one that was suspended may have written it last: the tables' tags say.
    """
    if head.barrier_id == 0:
        return None, ()
    entry = journal.entry(head.barrier_id)
    reattached = _reattach(deployment, entry)
    seen = deployment.tables.seen(entry.tables)
    tagged = max(seen.traces(table, entry.topology).published for table in entry.tables)
    if tagged <= entry.barrier_id:
        return entry, reattached
    entry = journal.entry(tagged)
    return entry, (*reattached, *_reattach(deployment, entry))


def _entries_after(
    deployment: Deployment,
    journal: JournalReader,
    newest: JournalEntry | None,
    committed: Barrier | None,
    revisions: Sequence[RevisionEntry],
) -> tuple[JournalEntry, ...]:
    """The entries that the MetaService lacks, oldest first: from the newest back to what it has committed; as they
    stood before ``revisions``.
    """
    known = committed.barrier_id if committed is not None else 0
    found: list[JournalEntry] = []
    barrier_id = newest.barrier_id if newest is not None else 0
    while barrier_id > known:
        found.append(_entry_before(journal, barrier_id, revisions))
        barrier_id = found[-1].predecessor
        if len(found) % _PROGRESS == 0:
            log.info("the journal of %d barriers is read, back to %s", len(found), found[-1])
    if barrier_id != known:
        raise JournalError(  # safety: journal-leads-back
            f"topology {journal.topology}: expected the journal to lead back to barrier {known}, which the MetaService "
            f"at {deployment.meta.url} has committed, found that it leads to barrier {barrier_id}: this MetaService is "
            "of another deployment; correct the connection"
        )
    if committed is not None and known:
        _check_agreement(deployment, journal, committed, revisions)
    return tuple(reversed(found))


def _entry_before(journal: JournalReader, barrier_id: int, revisions: Sequence[RevisionEntry]) -> JournalEntry:
    """A barrier as it stood before the first of ``revisions``; its own file may tell of any of them, or of none."""
    before = (revision.before(barrier_id) for revision in revisions)
    return next((entry for entry in before if entry is not None), None) or journal.entry(barrier_id)


def _check_agreement(
    deployment: Deployment, journal: JournalReader, known: Barrier, revisions: Sequence[RevisionEntry]
) -> None:
    """The newest barrier that both have must be the same one."""
    topology, barrier_id = known.topology, known.barrier_id
    entry = _entry_before(journal, barrier_id, revisions)
    if (
        entry.computed_in < known.computed_in
    ):  # whoever published that revision died before it came to this barrier's file
        entry = read_revision(deployment, topology, known.computed_in).at(barrier_id) or entry
    told, kept = _told(entry), _told_by(deployment, known, trimmed=entry.trimmed)
    if told != kept:
        different = sorted(name for name in told.keys() | kept.keys() if told.get(name) != kept.get(name))
        raise JournalError(  # safety: journal-agrees
            f"{entry}: expected the same snapshots in the journal and in the MetaService at {deployment.meta.url}, "
            f"found others of {', '.join(different)}: this MetaService is of another deployment; correct the connection"
        )


def _told(entry: JournalEntry) -> dict[str, object]:
    """Return the facts that must be the same in the MetaService: the snapshots, or of a barrier without them its time
    and its run.
    """
    if entry.trimmed:
        return {"timestamp": entry.timestamp, "run": entry.run, "predecessor": entry.predecessor}
    return {name: table.snapshot_id for name, table in entry.tables.items()}


def _told_by(deployment: Deployment, known: Barrier, *, trimmed: bool) -> dict[str, object]:
    if trimmed:
        return {"timestamp": known.timestamp, "run": known.run, "predecessor": known.predecessor or 0}
    return {row.table: row.snapshot_id for row in deployment.meta.barriers.progress(known.topology, known.barrier_id)}


def _reattach(deployment: Deployment, newest: JournalEntry) -> tuple[str, ...]:
    """Let the catalog point to the tables' newest state again, if it went with the MetaService."""
    reattached = deployment.tables.reattach(
        {name: (table.metadata, table.snapshot_id) for name, table in newest.tables.items()}
    )
    for name in reattached:
        log.info("table %s: the catalog points to its newest metadata again", name)
    return tuple(reattached)


def _tables(deployment: Deployment, topology: str, newest: JournalEntry | None) -> Sequence[str]:
    """Return the tables in which attempts of the lost time may have left traces."""
    return tuple(newest.tables) if newest is not None else deployment.meta.topologies.get(topology).tables


def _published(entries: Sequence[JournalEntry], traces: Mapping[str, Traces]) -> int:
    """Return the last barrier to which the tables were published: the last entry may be only decided.

    A person may have dropped a tag: then the barrier is published again, which changes nothing but the tag.
    """
    if not entries:
        return 0
    newest = entries[-1]
    with_tag = (name for name, table in newest.tables.items() if table.snapshot_id is not None)
    if all(traces[name].published >= newest.barrier_id for name in with_tag):
        return newest.barrier_id
    return newest.predecessor
