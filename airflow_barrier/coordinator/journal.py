"""Keeping the journal beside the tables, and seeing by it that a MetaService was lost, or restored from an old backup.

    <warehouse>/_barrier/<topology>/journal/head.json              who leads the topology, and how far
                                            b<id>.json             one decided barrier each
                                            r<number>.json         one decided revision each
                                            topology-<digest>.json the topologies that they were opened with

An entry is written after the decision (COMMITTING) and before the publish: whatever readers can see has one. Writing it
again writes the same.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.codec import decode, digest, encode
from airflow_barrier.protocol.errors import (
    ForeignWriteError,
    JournalError,
    LostStateError,
    UnknownTopologyError,
)
from airflow_barrier.protocol.journal import DecidedTable, JournalEntry, JournalHead, RevisionEntry
from airflow_barrier.protocol.names import Stamp, TagName
from airflow_barrier.protocol.records import Barrier, TableProgress
from airflow_barrier.protocol.revisions import Revision, RevisionState
from airflow_barrier.protocol.topology import Topology


def check_lead(deployment: Deployment, topology: str) -> None:
    """See that the MetaService is the one that leads ``topology``, and knows all that it decided.

    The first one to open a barrier leads. Costs one small file. Raises :class:`LostStateError`.
    """
    with led_look(deployment, topology):
        pass


@contextmanager
def led_look(deployment: Deployment, topology: str) -> Iterator[None]:
    """Check as :func:`check_lead` does, and let the reads of the block see that state of the MetaService."""
    head = read_head(deployment, topology)
    if head is None:
        _lead(deployment, topology)
    with deployment.meta.look():
        if head is not None:
            _check_head(deployment, topology, head)  # safety: lead-before-deciding
        yield


def _lead(deployment: Deployment, topology: str) -> None:
    _check_origins(
        deployment, topology, deployment.meta.topologies.get(topology).tables
    )  # safety: origin-before-leading
    incarnation, known = deployment.meta.topologies.incarnation(topology), _newest_known(deployment, topology)
    write_head(deployment, topology, JournalHead(incarnation, known, _newest_revision(deployment, topology)))


def check_not_lost(deployment: Deployment, topology: str) -> None:
    """Check that nothing was lost of a topology that may not be registered yet, before tables of it are made.

    Raises :class:`LostStateError`.
    """
    head = read_head(deployment, topology)
    if head is None:
        return
    try:
        with deployment.meta.look():
            _check_head(deployment, topology, head)
    except UnknownTopologyError:
        raise LostStateError(
            f"topology {topology}: expected the MetaService that leads it, incarnation {head.incarnation} (barriers up "
            f"to {head.barrier_id} are decided), found one at {deployment.meta.url} that does not know it. Does the "
            "connection point to another deployment's MetaService? Then correct it. Was the MetaService lost and made "
            f"anew? Then let the DAG run that opens the barriers, and run `airflow-barrier recover {topology}`"
        ) from None


def _check_head(deployment: Deployment, topology: str, head: JournalHead) -> None:
    """``head`` was read before the MetaService is asked, which is always ahead of it: the other way round a commit in
    between looks like a loss.
    """
    incarnation, known = deployment.meta.topologies.incarnation(topology), _newest_known(deployment, topology)
    revision = _newest_revision(deployment, topology)
    if head.incarnation != incarnation:
        raise LostStateError(  # safety: another-metaservice-leads
            f"topology {topology}: expected the MetaService that leads it, incarnation {head.incarnation} (barriers up "
            f"to {head.barrier_id} are decided), found incarnation {incarnation} at {deployment.meta.url}. Does the "
            "connection point to another deployment's MetaService? Then correct it. Was the MetaService lost and made "
            f"anew? Then run `airflow-barrier recover {topology}`, which catches up from the tables"
        )
    if head.barrier_id > known:
        raise LostStateError(  # safety: old-backup
            f"topology {topology}: expected a MetaService that knows barrier {head.barrier_id}, which is decided, "
            f"found one at {deployment.meta.url} that knows barriers up to {known} only; it was restored from an older "
            f"backup: run `airflow-barrier recover {topology}`, which catches up from the tables"
        )
    if head.revision > revision:
        raise LostStateError(  # safety: old-backup-of-a-revision
            f"topology {topology}: expected a MetaService that knows revision {head.revision}, which is decided, "
            f"found one at {deployment.meta.url} that knows revisions up to {revision} only; it was restored from an "
            f"older backup: run `airflow-barrier recover {topology}`, which catches up from the tables"
        )


def current_mains(deployment: Deployment, topology: str, expected: Mapping[str, int | None]) -> dict[str, int | None]:
    """Return the snapshot that `main` of each table is at, if that keeps the rows of what is ``expected`` of it.

    Raises ForeignWriteError; LostStateError if it was no stranger who moved it, but ourselves, in a time that this
    MetaService has lost.
    """
    try:
        return deployment.tables.currents(expected)
    except ForeignWriteError:
        _check_origins(deployment, topology, expected)  # safety: own-write-is-no-foreign-one
        raise


def _check_origins(deployment: Deployment, topology: str, tables: Collection[str]) -> None:
    """The tables' own word, in case the journal's head is lost as well. Raises :class:`LostStateError`.

    A stamp alone says that an attempt staged what `main` is at: its job or a person may have brought it there. What
    was published bears a tag as well, which came in the same commit.
    """
    seen = deployment.tables.seen(tables)
    for table in tables:
        _check_origin(deployment, topology, table, seen.origin(table))


def _check_origin(deployment: Deployment, topology: str, table: str, stamp: Stamp | None) -> None:
    if stamp is None or stamp.topology != topology:
        return
    known, revision = _newest_known(deployment, topology), _newest_revision(deployment, topology)
    if stamp.barrier_id <= known and stamp.revision <= revision:
        return
    published = _newest_published(deployment, topology)
    if published.barrier_id <= known and published.revision <= revision:  # safety: origin-was-published
        return
    if stamp.barrier_id > known:
        raise LostStateError(  # safety: origin-is-known
            f"topology {topology}: table {table} is at barrier {stamp.barrier_id}, which MetaService incarnation "
            f"{stamp.incarnation} published; expected a MetaService that knows it, found incarnation "
            f"{deployment.meta.topologies.incarnation(topology)} at {deployment.meta.url}, which knows barriers up to "
            f"{known} only. Does the connection point to another deployment's MetaService? Then correct it. Was the "
            f"MetaService lost, or restored from an older backup? Then run `airflow-barrier recover {topology}`"
        )
    if stamp.revision > revision:
        raise LostStateError(  # safety: origins-revision-is-known
            f"topology {topology}: table {table} is at revision {stamp.revision}, which MetaService incarnation "
            f"{stamp.incarnation} published; expected a MetaService that knows it, found one at {deployment.meta.url} "
            f"that knows revisions up to {revision} only; it was restored from an older backup: run `airflow-barrier "
            f"recover {topology}`, which catches up from the tables"
        )


def _newest_published(deployment: Deployment, topology: str) -> TagName:
    """The newest barrier and the newest revision that any table was published at, by the tags that are there still.

    Of a table that nobody writes any more the tags may have expired, while those of others tell.
    """
    tables = deployment.meta.topologies.get(topology).tables
    seen = deployment.tables.seen(tables)
    tags = [(0, 0), *(tag for table in tables for tag in seen.traces(table, topology).tags)]
    barriers, revisions = zip(*tags, strict=True)
    return TagName(topology, max(barriers), max(revisions))


def entry_of(deployment: Deployment, barrier: Barrier) -> tuple[JournalEntry, Topology]:
    """Return the entry of a decided barrier, as the MetaService has it now, and its topology: :func:`write_entry`."""
    meta = deployment.meta
    topology = meta.topologies.get(barrier.topology, barrier.topology_version)
    return _entry(deployment, barrier, meta.barriers.progress(barrier.topology, barrier.barrier_id)), topology


def write_entry(deployment: Deployment, entry: JournalEntry, topology: Topology) -> None:
    """Put a decided barrier into the journal."""
    entry = _located(entry, deployment.tables.metadata_locations(list(entry.tables)))
    _write_topology(deployment, topology)
    deployment.tables.write_text(entry_uri(deployment, entry.topology, entry.barrier_id), entry.dumps())
    _advance_head(deployment, entry.topology, entry.incarnation, entry.barrier_id)


def _entry(
    deployment: Deployment,
    barrier: Barrier,
    rows: Sequence[TableProgress],
    staged_in: int | None = None,
) -> JournalEntry:
    """A barrier's entry, but for where the documents of its tables lie. ``staged_in``: the line that its cuts are in,
    until a revision is published.
    """
    meta = deployment.meta
    line = barrier.line if staged_in is None or barrier.is_maintenance else staged_in
    topology = meta.topologies.get(barrier.topology, barrier.topology_version)
    return JournalEntry(
        topology=barrier.topology,
        barrier_id=barrier.barrier_id,
        computed_in=barrier.computed_in,
        incarnation=meta.topologies.incarnation(barrier.topology),
        predecessor=barrier.predecessor or 0,
        timestamp=barrier.timestamp,
        timestamp_from=barrier.timestamp_from,
        kind=barrier.kind,
        run=barrier.run,
        topology_digest=digest(topology),
        cuts=meta.cuts.of(barrier.topology, barrier.barrier_id, line) if topology.externals else {},
        tables={
            row.table: DecidedTable(row.job, row.snapshot_id, row.expected_snapshot, row.carried_from, "")
            for row in rows
        },
    )


def _located(entry: JournalEntry, metadata: Mapping[str, str]) -> JournalEntry:
    tables = {table: replace(decided, metadata=metadata[table]) for table, decided in entry.tables.items()}
    return replace(entry, tables=tables)


def write_revision(
    deployment: Deployment, revision: Revision, barriers: Sequence[Barrier], bases: Mapping[str, int | None]
) -> None:
    """Put a decided revision into the journal: its barriers that are COMMIT as they stand once it is published, and as
    they stand now; ``bases``: what its tables were at where it began.
    """
    meta, topology = deployment.meta, revision.topology
    entries, replaced = [], []
    stands = [meta.barriers.progress(topology, barrier.barrier_id) for barrier in barriers]
    # looked up once: of 100 tables at 30 barriers that is half of the time that nothing else can be published
    metadata = deployment.tables.metadata_locations(
        sorted({*revision.tables, *(r.table for rows in stands for r in rows)})
    )
    for barrier, standing in zip(barriers, stands, strict=True):
        rows = [row for row in standing if row.table in revision.tables]
        replaced.append(_located(_entry(deployment, barrier, rows), metadata))
        revised = meta.revisions.as_revised(barrier, revision.revision)
        entries.append(_located(_entry(deployment, revised.barrier, revised.rows, revision.revision), metadata))
        for version in {barrier.topology_version, revised.barrier.topology_version}:
            _write_topology(deployment, meta.topologies.get(topology, version))
    incarnation = meta.topologies.incarnation(topology)
    before = max(
        (each.revision for each in meta.revisions.newest(topology, revision.revision) if _stands(each)), default=0
    )
    entry = RevisionEntry(revision, incarnation, before, bases, tuple(entries), tuple(replaced))
    if meta.revisions.get(topology, revision.revision).state is RevisionState.COMMIT:
        return  # another publisher was faster, and its entry is there: what stood before is not to be seen here now
    deployment.tables.write_text(_revision_uri(deployment, topology, entry.number), entry.dumps())
    _advance_head(deployment, topology, incarnation, entry.head.barrier_id, entry.number)


def _stands(revision: Revision) -> bool:
    return revision.state is RevisionState.COMMIT


def _advance_head(deployment: Deployment, topology: str, incarnation: str, barrier: int, revision: int = 0) -> None:
    """Advance the head to ``barrier`` and ``revision``, or to what others have decided since: they may write theirs
    between our look and our write.
    """
    while (head := read_head(deployment, topology)) is None or head.barrier_id < barrier or head.revision < revision:
        before = head if head is not None else JournalHead(incarnation, 0)
        barrier, revision = max(barrier, before.barrier_id), max(revision, before.revision)
        write_head(deployment, topology, JournalHead(incarnation, barrier, revision))
        with deployment.meta.look():
            known, newest = _newest_known(deployment, topology), _newest_revision(deployment, topology)
        later = range(barrier + 1, known + 1)
        barrier = max(
            (n for n in later if deployment.tables.exists(entry_uri(deployment, topology, n))), default=barrier
        )
        if newest > revision and deployment.tables.exists(_revision_uri(deployment, topology, newest)):
            revision = newest


# --- the files ------------------------------------------------------------------------------------


def read_head(deployment: Deployment, topology: str) -> JournalHead | None:
    """None: nobody has opened a barrier of the topology on this warehouse."""
    text = _text(deployment, _uri(deployment, topology, "head"))
    return None if text is None else JournalHead.loads(text)


def write_head(deployment: Deployment, topology: str, head: JournalHead) -> None:
    deployment.tables.write_text(_uri(deployment, topology, "head"), head.dumps())


def read_entry(deployment: Deployment, topology: str, barrier_id: int) -> JournalEntry:
    """Raises :class:`JournalError` if it is not there."""
    return JournalEntry.loads(_required(deployment, entry_uri(deployment, topology, barrier_id)))


def read_revision(deployment: Deployment, topology: str, number: int) -> RevisionEntry:
    """Raises :class:`JournalError` if it is not there."""
    return RevisionEntry.loads(_required(deployment, _revision_uri(deployment, topology, number)))


def read_topology(deployment: Deployment, name: str, topology_digest: str) -> Topology:
    """Raises :class:`JournalError` if it is not there."""
    return decode(Topology, json.loads(_required(deployment, _uri(deployment, name, f"topology-{topology_digest}"))))


def entry_uri(deployment: Deployment, topology: str, barrier_id: int) -> str:
    return _uri(deployment, topology, f"b{barrier_id}")


def _revision_uri(deployment: Deployment, topology: str, number: int) -> str:
    return _uri(deployment, topology, f"r{number}")


def _newest_known(deployment: Deployment, topology: str) -> int:
    newest = deployment.meta.barriers.newest_decided(topology)
    return newest.barrier_id if newest is not None else 0


def _newest_revision(deployment: Deployment, topology: str) -> int:
    """The newest revision that is decided."""
    return deployment.meta.revisions.newest_decided(topology)


def _write_topology(deployment: Deployment, topology: Topology) -> None:
    uri = _uri(deployment, topology.name, f"topology-{digest(topology)}")
    if not deployment.tables.exists(uri):
        deployment.tables.write_text(uri, json.dumps(encode(topology), indent=1, sort_keys=True))


def _required(deployment: Deployment, uri: str) -> str:
    text = _text(deployment, uri)
    if text is None:
        raise JournalError(  # safety: journal-is-there
            f"journal: expected a file at {uri}, found none; restore it from the storage's own versions or backup: "
            "without it the MetaService cannot be rebuilt past it"
        )
    return text


def _text(deployment: Deployment, uri: str) -> str | None:
    try:
        return deployment.tables.read_text(uri)
    except FileNotFoundError:
        return None


def _uri(deployment: Deployment, topology: str, name: str) -> str:
    return deployment.tables.location("_barrier", topology, "journal", f"{name}.json")
