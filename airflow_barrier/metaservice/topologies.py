"""Registering what DAGs declare: fragments, their union, and which topology a table belongs to."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.rows import (
    chunks,
    head,
    incarnation_of,
    load_topology,
    lock_topology,
    of_topology,
    topology_version,
    uncommitted,
)
from airflow_barrier.metaservice.schema import DatabaseNow
from airflow_barrier.metaservice.starts import last_progress, last_start
from airflow_barrier.metaservice.transaction import Group, changes, reads
from airflow_barrier.metaservice.transitions import Event, record
from airflow_barrier.protocol.codec import decode, digest, encode
from airflow_barrier.protocol.errors import StillReadError, TableClaimedError, TopologyError, WithdrawnError
from airflow_barrier.protocol.names import is_rehearsal
from airflow_barrier.protocol.records import Withdrawal
from airflow_barrier.protocol.topology import Job, Topology, check_names

log = logging.getLogger(__name__)

_CHANGES = select(schema.topology.c.changes).where(schema.topology.c.name == bindparam("name"))
_ALL_CHANGES = select(schema.topology.c.name, schema.topology.c.changes)


class Topologies(Group):
    """The declarations of DAGs, as one topology a name. A topology has a new version with each change of the union."""

    def register(self, name: str, owner: str, jobs: Sequence[Job], actor: str, *, at: datetime | None = None) -> int:
        """Replace what ``owner``, a DAG, declares; returns the topology's version, a new one if the union changed.

        No jobs: the DAG leaves. Barriers that are open keep the version they were opened with. ``at`` (UTC): the
        timestamp of the run that declares it. If a later barrier has been opened, aborted or not, the run may have the
        code of then, and changes nothing. Raises a
        :class:`~airflow_barrier.protocol.errors.TopologyError` of its own for each thing that is wrong with the
        union of all DAGs' jobs, TableClaimedError for a table of another topology.
        """
        check_names(name, jobs)
        version = self._read(lambda c: _registered_version(c, name, owner, jobs))
        if version is not None:
            return version
        return self._write(lambda c: _replace(c, name, owner, jobs, actor, at))

    @reads
    def is_settled(self, connection: Connection, name: str, owner: str, job: str, at: datetime) -> bool:
        """Return whether a run at ``at`` (UTC) leaves a job as it is: a later barrier has been opened, aborted or not,
        and the job is or was a member.
        """
        return _is_settled(connection, name, owner, job, at)

    def join(
        self, name: str, owner: str, job: str, declared: Sequence[Job], actor: str, *, at: datetime | None = None
    ) -> int | tuple[str, ...]:
        """Register one job of ``owner``, whose task has started, beside those that have before.

        Of ``declared``, all that the DAG declares, the others are not registered: a job that never runs would hold up
        every barrier. Jobs that are no longer declared leave. ``at`` (UTC): the timestamp of the run. If a
        later barrier has been opened, the run adds a job that has never been a member, and changes nothing else.
        Returns the topology's version, or the tables that the job reads and nobody writes yet, with nothing
        registered. Raises WithdrawnError for a job that was taken out, and what :meth:`register` does.
        """
        check_names(name, declared)
        version = self._read(lambda c: _joined_version(c, name, owner, job, declared))
        if version is not None:
            return version
        return self._write(lambda c: _join(c, name, owner, job, declared, actor, at))

    @changes
    def leave(
        self, connection: Connection, name: str, owner: str, job: str | None, reason: str, actor: str
    ) -> Withdrawal:
        """Take a job of ``owner``, or all of them (None), out: from the next barrier on, and until :meth:`readmit`.

        Again changes nothing. Raises StillReadError for a table that others read, TopologyError if there is no such
        job.
        """
        wait_for_turn(connection)  # safety: registrations-queue
        topology_version(connection, name)
        registered = _jobs_of(connection, name, owner)
        going = [each for each in registered if job in (None, each.name)]
        if not going:
            gone = _withdrawal_of(_withdrawals(connection, name, owner), job or "")
            if gone is not None:
                return gone
            known = [
                f"{each.name} (DAG {each.owner})" for each in (*registered, *_jobs_of_others(connection, name, owner))
            ]
            raise TopologyError(
                f"topology {name}: expected {f'job {job}' if job else 'jobs'} of DAG {owner}, found registered only: "
                f"{', '.join(known) or 'none'}; correct the names"
            )
        staying = [each for each in registered if each not in going]
        _check_unread(connection, name, going, [*staying, *_jobs_of_others(connection, name, owner)])
        _register(
            connection,
            name,
            owner,
            staying,
            Event("left", actor, {"owner": owner, "jobs": [each.name for each in going], "reason": reason}),
        )
        table = schema.withdrawn
        if job is None:
            # those that left alone before leave with the DAG now: their tables may have yet to be given back
            going = [*going, *(each for gone in _withdrawals(connection, name, owner) for each in gone.jobs)]
            connection.execute(delete(table).where(table.c.topology == name, table.c.owner == owner))
        key = {"topology": name, "owner": owner, "job": job or ""}
        connection.execute(
            insert(table).values(**key, at=DatabaseNow(), actor=actor, reason=reason, jobs=encode(_by_name(going)))
        )
        (gone,) = (each for each in _withdrawals(connection, name, owner) if each.job == job)
        return gone

    @changes
    def readmit(self, connection: Connection, name: str, owner: str, job: str | None, actor: str) -> bool:
        """Let what left register again when it runs next; False: nothing has left. Raises TopologyError."""
        wait_for_turn(connection)  # safety: registrations-queue
        topology_version(connection, name)
        table = schema.withdrawn
        gone = _withdrawals(connection, name, owner)
        if job is not None and any(each.job is None for each in gone):
            raise TopologyError(
                f"topology {name}: expected that job {job} of DAG {owner} left alone, found that the whole DAG has "
                f"left; let the DAG join: airflow-barrier topology join {name} --dag {owner}"
            )
        chosen = [each for each in gone if job in (None, each.job)]
        for each in chosen:
            connection.execute(
                delete(table).where(table.c.topology == name, table.c.owner == owner, table.c.job == (each.job or ""))
            )
        detail = {"owner": owner, "jobs": [each.job for each in chosen]}
        if chosen:
            record(connection, Event("readmitted", actor, detail), name, None, "topology", [name])
        return bool(chosen)

    @reads
    def withdrawal(self, connection: Connection, name: str, owner: str, job: str) -> Withdrawal | None:
        """Return how a DAG's job left, alone or with its whole DAG; None: it has not."""
        return _withdrawal(connection, name, owner, job)

    @reads
    def waiting(self, connection: Connection, name: str) -> tuple[Job, ...]:
        """The registered jobs that join once a revision has computed their tables over history."""
        return tuple(waiting(connection, name))

    @reads
    def waits(self, connection: Connection, name: str, job: Job) -> bool:
        """Return whether ``job``, registered or not, would be one of :meth:`waiting`."""
        return waits(connection, name, job)

    @reads
    def get(self, connection: Connection, name: str, version: int | None = None) -> Topology:
        """The topology as of a version; None: the current one."""
        return load_topology(connection, name, topology_version(connection, name) if version is None else version)

    @reads
    def version(self, connection: Connection, name: str) -> int:
        """The current version, which the next barrier is opened with."""
        return topology_version(connection, name)

    @reads
    def names(self, connection: Connection) -> list[str]:
        """The names of all topologies, in order; without rehearsals."""
        found = connection.execute(select(schema.topology.c.name).order_by(schema.topology.c.name)).scalars()
        return [name for name in found if not is_rehearsal(name)]

    @reads
    def change_count(self, connection: Connection, name: str) -> int:
        """Return how many changes there were: as long as it is the same, nothing has become of what somebody waits for.

        0 of a topology that nobody has registered yet. One query, of one row.
        """
        return int(connection.execute(_CHANGES, {"name": name}).scalar_one_or_none() or 0)

    @reads
    def change_counts(self, connection: Connection) -> dict[str, int]:
        """:meth:`change_count` of all topologies, by their names. One query."""
        return {row.name: row.changes for row in connection.execute(_ALL_CHANGES)}

    @reads
    def incarnation(self, connection: Connection, name: str) -> str:
        """Made up when the database was created or the topology recovered; it stands in the stamp of every snapshot
        that is staged for the topology, and in its journal.
        """
        return incarnation_of(connection, name)


def _registered_version(connection: Connection, name: str, owner: str, jobs: Sequence[Job]) -> int | None:
    """The topology's version if ``owner``'s fragment is already exactly this, so that nothing needs to be written."""
    fragment, topology = schema.fragment, schema.topology
    jobs = _staying(connection, name, owner, jobs)
    row = connection.execute(
        select(fragment.c.jobs, topology.c.version)
        .join_from(fragment, topology, fragment.c.topology == topology.c.name)
        .where(fragment.c.topology == name, fragment.c.owner == owner)
    ).one_or_none()
    return int(row.version) if row is not None and digest(row.jobs) == digest(_by_name(jobs)) else None


def _replace(
    connection: Connection, name: str, owner: str, jobs: Sequence[Job], actor: str, at: datetime | None = None
) -> int:
    """Replace ``owner``'s fragment and make the union a new version, if that is a valid topology.

    Jobs that were withdrawn stay away. A run at ``at`` that was :func:`_overtaken` changes nothing.
    """
    for job in jobs:
        if job.owner != owner:
            raise TopologyError(
                f"topology {name}: DAG {owner} registers job {job.name}, whose owner is DAG {job.owner}; a DAG "
                "registers only jobs of its own: correct the owner"
            )
    # Claims reach across topologies, so registrations are one after another; they are rare.
    wait_for_turn(connection)  # safety: registrations-queue
    if at is not None and _overtaken(connection, name, at):  # safety: old-runs-register-nothing
        return _left_as_it_is(connection, name, owner, at)
    jobs = _staying(connection, name, owner, jobs)
    return _register(connection, name, owner, jobs, Event("registered", actor, {"owner": owner}))


def _overtaken(connection: Connection, name: str, at: datetime) -> bool:
    """Return whether a barrier later than ``at`` has been opened, aborted or not: a run at ``at`` may have old code."""
    barrier = schema.barrier
    later = select(barrier.c.barrier_id).where(of_topology(barrier, name), barrier.c.timestamp > at).limit(1)
    return connection.execute(later).one_or_none() is not None


def _left_as_it_is(connection: Connection, name: str, owner: str, at: datetime) -> int:
    log.warning(
        "topology %s: what DAG %s declares in its run at %s differs from what is registered, and is not taken: a "
        "barrier of a later timestamp has been opened, so the run may have the code of then",
        name,
        owner,
        at.isoformat(),
    )
    return topology_version(connection, name)


def _register(connection: Connection, name: str, owner: str, jobs: Sequence[Job], event: Event) -> int:
    if (version := _registered_version(connection, name, owner, jobs)) is not None:
        return version  # by another one, since the caller looked
    declared = Topology.of(name, [*_jobs_of_others(connection, name, owner), *jobs])
    version = _next_version(connection, declared)
    _claim(connection, declared)
    _replace_fragment(connection, name, owner, jobs)
    event = Event(event.name, event.actor, {**(event.detail or {}), "version": version})
    record(connection, event, name, None, "topology", [name])
    return version


def _jobs_of_others(connection: Connection, name: str, owner: str) -> list[Job]:
    """Return the jobs that all DAGs but ``owner`` have registered."""
    fragment = schema.fragment
    others = fragment.c.owner != owner
    rows = connection.execute(
        select(fragment.c.jobs).where(fragment.c.topology == name, others).order_by(fragment.c.owner)
    )
    return [decode(Job, job) for row in rows for job in row.jobs]


def _jobs_of(connection: Connection, name: str, owner: str) -> list[Job]:
    """Return the jobs that ``owner`` has registered."""
    fragment = schema.fragment
    found = connection.execute(
        select(fragment.c.jobs).where(fragment.c.topology == name, fragment.c.owner == owner)
    ).scalar_one_or_none()
    return [decode(Job, job) for job in found or ()]


def _staying(connection: Connection, name: str, owner: str, jobs: Sequence[Job]) -> Sequence[Job]:
    """Leave out jobs that have left."""
    gone = _withdrawals(connection, name, owner)
    return [job for job in jobs if _withdrawal_of(gone, job.name) is None] if gone else jobs


# --- joining with a history ---------------------------------------------------------------------------


def waiting(connection: Connection, name: str) -> list[Job]:
    """The registered jobs that are no members yet: first a revision computes their tables over history."""
    return [job for job in _declared(connection, name) if waits(connection, name, job)]


def waits(connection: Connection, name: str, job: Job) -> bool:
    """Return whether a job waits for its history. In a topology without barriers there is none to wait for."""
    if not job.from_history:
        return False
    latest = head(connection, name)
    if latest is None or not latest.barrier_id:
        return False
    had = (last_progress(connection, name, outlet) for outlet in job.outlets)
    return not any(row is not None and row.job == job.name for row in had)


def admit(connection: Connection, name: str, actor: str) -> None:
    """The jobs that have their history by now are members from the next barrier on."""
    version = _next_version(connection, Topology.of(name, _declared(connection, name)))
    record(connection, Event("joined", actor, {"version": version}), name, None, "topology", [name])


def _declared(connection: Connection, name: str) -> list[Job]:
    """Return the jobs that all DAGs have registered: members, and those that wait."""
    return _jobs_of_others(connection, name, owner="")


def _members(connection: Connection, declared: Topology) -> Topology:
    """Leave out the jobs that wait, whose names and tables are taken all the same."""
    absent = {job.name for job in declared.jobs if waits(connection, declared.name, job)}
    members = [
        job
        for job in declared.jobs
        if job.name not in absent  # safety: waits-for-its-history
    ]
    for job in members:
        early = [table for table in job.inlets if declared.writer(table).name in absent]
        if early:
            raise TopologyError(  # safety: reads-what-has-its-history
                f"topology {declared.name}: job {job.name} (DAG {job.owner}) reads {', '.join(early)}, which job "
                f"{declared.writer(early[0]).name} has yet to compute over history; declare {job.name} with "
                "start_from='history' too, or let it join once that is done"
            )
    return Topology.of(declared.name, members)


# --- joining one by one, and leaving ------------------------------------------------------------------


def _joined_version(connection: Connection, name: str, owner: str, job: str, declared: Sequence[Job]) -> int | None:
    """The topology's version if ``job`` is registered exactly as declared, and so are the DAG's others."""
    if _withdrawal(connection, name, owner, job) is not None:
        return None
    started = _started(_jobs_of(connection, name, owner), job, declared)
    return _registered_version(connection, name, owner, started)


def _join(
    connection: Connection,
    name: str,
    owner: str,
    job: str,
    declared: Sequence[Job],
    actor: str,
    at: datetime | None = None,
) -> int | tuple[str, ...]:
    """Register ``job``, whose task has started, beside those of its DAG that have before and are still ``declared``.

    A run at ``at`` that was :func:`_overtaken` adds a job that has never been a member, and changes nothing else.
    Returns the version, or the tables that it reads and nobody writes yet: then nothing was registered.
    """
    wait_for_turn(connection)  # safety: registrations-queue
    gone = _withdrawal_of(_withdrawals(connection, name, owner), job)
    if gone is not None:
        raise WithdrawnError(  # safety: withdrawn-stays-away
            f"{gone}: its tables stay as they are; take the job out of the DAG's group, or let it take part again: "
            f"airflow-barrier topology join {name} --dag {owner}{f' --job {job}' if gone.job else ''}"
        )
    if at is not None and _is_settled(connection, name, owner, job, at):  # safety: old-runs-register-nothing
        return _left_as_it_is(connection, name, owner, at)
    before = _jobs_of(connection, name, owner)
    (joining,) = (each for each in declared if each.name == job)
    if at is not None and _overtaken(connection, name, at):  # safety: old-runs-register-nothing
        started = [*before, joining]
    else:
        started = _started(before, job, declared)
    others = _jobs_of_others(connection, name, owner)
    together = waits(connection, name, joining)
    written = {
        outlet
        for each in (*others, *started)
        for outlet in each.outlets
        if together or not waits(connection, name, each)
    }
    missing = tuple(table for table in joining.inlets if table not in written)
    if missing:
        return missing
    return _register(connection, name, owner, started, Event("joined", actor, {"owner": owner, "job": job}))


def _is_settled(connection: Connection, name: str, owner: str, job: str, at: datetime) -> bool:
    """Return whether a run at ``at`` leaves a job as it is: it was :func:`_overtaken`, and the job is or was a member.

    A job that has never been one joins late: members that catch up may run behind the newest barrier all the time.
    """
    if not _overtaken(connection, name, at):
        return False
    registered = any(each.name == job for each in _jobs_of(connection, name, owner))
    return registered or last_start(connection, name, job) is not None


def _started(before: Sequence[Job], job: str, declared: Sequence[Job]) -> list[Job]:
    names = {each.name for each in before} | {job}
    return [
        each
        for each in declared
        if each.name in names  # safety: only-started-jobs
    ]


def wait_for_turn(connection: Connection) -> None:
    """Lock the service's row: to register, join, leave or come back is one at a time, whatever the topologies."""
    connection.execute(select(schema.service.c.service_id).with_for_update())


def _check_unread(connection: Connection, name: str, going: Sequence[Job], staying: Sequence[Job]) -> None:
    tables = {outlet for job in going for outlet in job.outlets}
    readers = [
        f"{table} is read by job {job.name} (DAG {job.owner})"
        for job in staying
        for table in job.inlets
        if table in tables
    ]
    if readers:
        raise StillReadError(  # safety: leaves-no-readers-behind
            f"topology {name}: expected that nobody reads the tables of what leaves, found: {'; '.join(readers)}. Let "
            "the readers leave first, or have them read the table as an external source, IcebergTable(...)"
        )


def _withdrawals(connection: Connection, name: str, owner: str) -> list[Withdrawal]:
    """Return the withdrawals of a DAG."""
    table = schema.withdrawn
    rows = connection.execute(
        select(table).where(table.c.topology == name, table.c.owner == owner).order_by(table.c.job)
    )
    return [
        Withdrawal(
            row.topology,
            row.owner,
            row.job or None,
            row.at,
            row.actor,
            row.reason,
            tuple(decode(Job, job) for job in row.jobs),
        )
        for row in rows
    ]


def _withdrawal(connection: Connection, name: str, owner: str, job: str) -> Withdrawal | None:
    """Return how a DAG's job left, alone or with all of the DAG; None: it has not."""
    return _withdrawal_of(_withdrawals(connection, name, owner), job)


def _withdrawal_of(gone: Sequence[Withdrawal], job: str) -> Withdrawal | None:
    return next((each for each in gone if each.job in (None, job)), None)


def _next_version(connection: Connection, declared: Topology) -> int:
    topology = schema.topology
    exists = connection.execute(select(topology.c.name).where(topology.c.name == declared.name)).one_or_none()
    if exists is None:
        union = declared
        _insert_topology(connection, union.name)
        version = 1
    else:
        current = lock_topology(connection, declared.name)
        # from here on no revision is published that lets one of them join
        union = _members(connection, declared)
        if digest(load_topology(connection, union.name, current)) == digest(union):
            return current
        version = current + 1
        connection.execute(
            update(topology).where(topology.c.name == union.name, topology.c.version == current).values(version=version)
        )
    _insert_version(connection, union, version)
    return version


def _insert_version(connection: Connection, topology: Topology, version: int) -> None:
    connection.execute(
        insert(schema.topology_version).values(
            topology=topology.name,
            version=version,
            definition=encode(topology),
            digest=digest(topology),
            created_at=DatabaseNow(),
        )
    )


def _insert_topology(connection: Connection, name: str) -> None:
    incarnation = select(schema.service.c.incarnation).scalar_subquery()
    values = {"name": name, "version": 1, "changes": 1, "created_at": DatabaseNow(), "incarnation": incarnation}
    connection.execute(insert(schema.topology).values(values))


def insert_topology(connection: Connection, topology: Topology) -> None:
    """A new topology, at its first version; no table is claimed for it."""
    _insert_topology(connection, topology.name)
    _insert_version(connection, topology, 1)


def adopt_topology(connection: Connection, topology: Topology) -> None:
    """Register what the barriers of a lost time were opened with, unless DAGs have registered the topology since."""
    table = schema.topology
    if connection.execute(select(table.c.name).where(table.c.name == topology.name)).one_or_none() is not None:
        return
    insert_topology(connection, topology)
    _claim(connection, topology)
    for owner in sorted({job.owner for job in topology.jobs}):
        _replace_fragment(connection, topology.name, owner, [job for job in topology.jobs if job.owner == owner])


def version_of(connection: Connection, topology: Topology) -> int:
    """The number of a version that an earlier barrier was opened with; it gets one, below the current, if it has none.

    The current definition stays the newest version: it gets the number above.
    """
    table, versions = schema.topology, schema.topology_version
    known = connection.execute(
        select(versions.c.version)
        .where(versions.c.topology == topology.name, versions.c.digest == digest(topology))
        .order_by(versions.c.version)
        .limit(1)
    ).scalar_one_or_none()
    if known is not None:
        return int(known)
    current = lock_topology(connection, topology.name)
    _insert_version(connection, topology, current + 1)
    _insert_version(connection, load_topology(connection, topology.name, current), current + 2)
    connection.execute(update(table).where(table.c.name == topology.name).values(version=current + 2))
    return current + 1


def _claim(connection: Connection, union: Topology) -> None:
    claim = schema.table_claim
    claims: dict[str, str] = {}
    for names in chunks(union.tables):
        rows = connection.execute(select(claim.c.table_name, claim.c.topology).where(claim.c.table_name.in_(names)))
        claims.update((row.table_name, row.topology) for row in rows)
    for table, holder in claims.items():
        if holder == union.name:
            continue
        if _holds(connection, holder, table):
            raise TableClaimedError(  # safety: table-of-one-topology
                f"topology {union.name}: table {table} (job {union.writer(table).name}) belongs to topology {holder}; "
                f"a table belongs to one: take it out of {holder} and let its open barriers commit, or join {holder}"
            )
        connection.execute(update(claim).where(claim.c.table_name == table).values(topology=union.name))
    new = [table for table in union.tables if table not in claims]
    if new:
        connection.execute(insert(claim), [{"table_name": table, "topology": union.name} for table in new])


def _holds(connection: Connection, holder: str, table: str) -> bool:
    """Return whether a topology still needs a table: it declares it, or a barrier in flight will publish it."""
    version = lock_topology(connection, holder)
    return (
        table in load_topology(connection, holder, version).tables  # safety: claimed-while-declared
        or any(table in job.outlets for job in waiting(connection, holder))  # safety: claimed-while-waiting
        or staged_somewhere(connection, holder, table)  # safety: claimed-while-in-flight
    )


def staged_somewhere(connection: Connection, topology: str, table: str) -> bool:
    """Return whether a barrier in flight has the table."""
    progress = schema.table_progress
    in_flight = [barrier.barrier_id for barrier in uncommitted(connection, topology)]
    row = connection.execute(
        select(progress.c.barrier_id)
        .where(of_topology(progress, topology), progress.c.barrier_id.in_(in_flight), progress.c.table_name == table)
        .limit(1)
    ).one_or_none()
    return row is not None


def _replace_fragment(connection: Connection, name: str, owner: str, jobs: Sequence[Job]) -> None:
    fragment = schema.fragment
    connection.execute(delete(fragment).where(fragment.c.topology == name, fragment.c.owner == owner))
    connection.execute(
        insert(fragment).values(topology=name, owner=owner, jobs=encode(_by_name(jobs)), registered_at=DatabaseNow())
    )


def _by_name(jobs: Sequence[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: job.name)
