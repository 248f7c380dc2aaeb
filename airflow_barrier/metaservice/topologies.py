"""Registering what DAGs declare: fragments, their union, and which topology a table belongs to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.rows import chunks, load_topology, lock_topology, of_topology, uncommitted
from airflow_barrier.metaservice.schema import DatabaseNow
from airflow_barrier.metaservice.transitions import Event, record
from airflow_barrier.protocol.errors import TableClaimedError, TopologyError
from airflow_barrier.protocol.topology import Job, Topology


def registered_version(connection: Connection, name: str, owner: str, jobs: Sequence[Job]) -> int | None:
    """The topology's version if ``owner``'s fragment is already exactly this, so that nothing needs to be written."""
    fragment, topology = schema.fragment, schema.topology
    row = connection.execute(
        select(fragment.c.jobs, topology.c.version)
        .join_from(fragment, topology, fragment.c.topology == topology.c.name)
        .where(fragment.c.topology == name, fragment.c.owner == owner)
    ).one_or_none()
    return int(row.version) if row is not None and _text(row.jobs) == _text(_to_json(jobs)) else None


def register(connection: Connection, name: str, owner: str, jobs: Sequence[Job], actor: str) -> int:
    """Replace ``owner``'s fragment and make the union a new version, if that is a valid topology."""
    for job in jobs:
        if job.owner != owner:
            raise TopologyError(
                f"topology {name}: DAG {owner} registers job {job.name}, whose owner is DAG {job.owner}; a DAG "
                "registers only jobs of its own: correct the owner"
            )
    # Claims reach across topologies, so registrations are one after another; they are rare.
    connection.execute(select(schema.service.c.service_id).with_for_update())  # safety: registrations-queue
    jobs_of_others = [
        Job.from_json(job)
        for row in connection.execute(
            select(schema.fragment.c.jobs)
            .where(schema.fragment.c.topology == name, schema.fragment.c.owner != owner)
            .order_by(schema.fragment.c.owner)
        )
        for job in row.jobs
    ]
    union = Topology.of(name, [*jobs_of_others, *jobs])
    version = _next_version(connection, union)
    _claim(connection, union)
    _replace_fragment(connection, name, owner, jobs)
    record(connection, Event("registered", actor, {"owner": owner, "version": version}), name, None, "topology", [name])
    return version


def _next_version(connection: Connection, union: Topology) -> int:
    topology = schema.topology
    exists = connection.execute(select(topology.c.name).where(topology.c.name == union.name)).one_or_none()
    if exists is None:
        connection.execute(insert(topology).values(name=union.name, version=1, created_at=DatabaseNow()))
        version = 1
    else:
        current = lock_topology(connection, union.name)
        if load_topology(connection, union.name, current).digest == union.digest:
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
            definition=topology.to_json(),
            digest=topology.digest,
            created_at=DatabaseNow(),
        )
    )


def adopt_topology(connection: Connection, topology: Topology) -> None:
    """Register what the barriers of a lost time were opened with, unless DAGs have registered the topology since."""
    table = schema.topology
    if connection.execute(select(table.c.name).where(table.c.name == topology.name)).one_or_none() is not None:
        return
    connection.execute(insert(table).values(name=topology.name, version=1, created_at=DatabaseNow()))
    _insert_version(connection, topology, 1)
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
        .where(versions.c.topology == topology.name, versions.c.digest == topology.digest)
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
    """Whether a topology still needs a table: it declares it, or a barrier in flight will publish it."""
    version = lock_topology(connection, holder)
    return (
        table in load_topology(connection, holder, version).tables  # safety: claimed-while-declared
        or staged_somewhere(connection, holder, table)  # safety: claimed-while-in-flight
    )


def staged_somewhere(connection: Connection, topology: str, table: str) -> bool:
    """Whether a barrier in flight has the table."""
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
        insert(fragment).values(topology=name, owner=owner, jobs=_to_json(jobs), registered_at=DatabaseNow())
    )


def _to_json(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    return [job.to_json() for job in sorted(jobs, key=lambda job: job.name)]


def _text(jobs: list[dict[str, Any]]) -> str:
    return json.dumps(jobs, sort_keys=True)
