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
    connection.execute(select(schema.service.c.service_id).with_for_update())
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
    topology, versions = schema.topology, schema.topology_version
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
    connection.execute(
        insert(versions).values(
            topology=union.name,
            version=version,
            definition=union.to_json(),
            digest=union.digest,
            created_at=DatabaseNow(),
        )
    )
    return version


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
            raise TableClaimedError(
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
    return table in load_topology(connection, holder, version).tables or staged_somewhere(connection, holder, table)


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
