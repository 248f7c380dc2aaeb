"""What it costs to look at many large topologies: each route of the API that the page asks, over a real server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Table, create_engine, func, insert, select

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.records import BarrierKind
from airflow_barrier.protocol.states import AttemptState, BarrierState, TableState
from airflow_barrier.protocol.topology import Job, Topology

#: Barriers whose tables and attempts are still known; the older ones were trimmed.
_KNOWN = 16
_CADENCE = timedelta(minutes=10)
#: Seconds after the timestamp.
_OPENED, _PRECOMMIT, _COMMIT = 4, 130, 140
_ROWS = 10_000


def make(url: str, topologies: int, tables: int, barriers: int) -> MetaService:
    """So many topologies of so many tables in ten DAGs, and of so many barriers, ten minutes apart.

    The newest barrier is open: its last jobs run. The others are COMMIT, and all but the newest 16 were trimmed.
    """
    meta = MetaService(url)
    engine = create_engine(url)
    for number in range(topologies):
        name = f"topology_{number:02}"
        jobs = [_job(name, table, tables) for table in range(tables)]
        for owner in sorted({job.owner for job in jobs}):
            version = meta.topologies.register(
                name, owner, [job for job in jobs if job.owner == owner], actor="benchmark"
            )
        with engine.begin() as connection:
            _fill(connection, Topology.of(name, jobs), version, barriers)
    engine.dispose()
    return meta


def _job(topology: str, table: int, tables: int) -> Job:
    """In chains of ten, which a critical path follows."""

    def name(number: int) -> str:
        return f"{topology}.table_{number:04}"

    owner = f"{topology}_dag_{table * 10 // tables}"
    return Job(f"job_{table:04}", owner, (name(table - 1),) if table % 10 else (), (name(table),))


def _fill(connection: Connection, topology: Topology, version: int, barriers: int) -> None:
    newest = datetime.now(timezone.utc) - timedelta(seconds=100)
    times = {number: newest - _CADENCE * (barriers - number) for number in range(barriers + 1)}
    _insert(
        connection, schema.barrier, (_barrier(topology, version, number, times[number], barriers) for number in times)
    )
    known = range(max(barriers - _KNOWN, 0), barriers + 1)
    attempts = connection.execute(select(func.coalesce(func.max(schema.attempt.c.attempt_id), 0))).scalar_one()
    rows = [
        (number, job, times[number], attempts + 1 + at)
        for at, (number, job) in enumerate((number, job) for number in known if number for job in topology.jobs)
    ]
    done = len(topology.jobs) * 3 // 4
    running = {job.name for job in topology.jobs[done:]}

    def state(number: int, job: Job) -> tuple[bool, bool]:
        return number < barriers, number < barriers or job.name not in running

    _insert(connection, schema.attempt, (_attempt(topology, *row, state(row[0], row[1])[1]) for row in rows))
    _insert(connection, schema.table_progress, (_progress(topology, *row, *state(row[0], row[1])) for row in rows))


def _insert(connection: Connection, table: Table, rows: Iterator[dict[str, Any]]) -> None:
    while some := list(islice(rows, _ROWS)):
        connection.execute(insert(table), some)


def _key(topology: Topology, number: int) -> dict[str, Any]:
    return {"topology": topology.name, "line": 0, "barrier_id": number}


def _barrier(topology: Topology, version: int, number: int, time: datetime, last: int) -> dict[str, Any]:
    committed = number < last
    trimmed = time if 0 < number < last - _KNOWN else None
    return {
        **_key(topology, number),
        "timestamp": time if number else datetime(1970, 1, 1, tzinfo=timezone.utc),
        "state": (BarrierState.COMMIT if committed else BarrierState.OPEN).value,
        "predecessor": number - 1 if number else None,
        "topology_version": version,
        "kind": (BarrierKind.EPOCH if number else BarrierKind.BASELINE).value,
        "run_dag_id": topology.jobs[0].owner if number else "",
        "run_id": f"scheduled__{time.isoformat()}" if number else "",
        "run_kind": "scheduled" if number else "",
        "timestamp_from": "data interval end",
        "opened_at": time + timedelta(seconds=_OPENED),
        "precommit_at": time + timedelta(seconds=_PRECOMMIT) if committed else None,
        "committing_at": time + timedelta(seconds=_PRECOMMIT) if committed else None,
        "commit_at": time + timedelta(seconds=_COMMIT) if committed else None,
        **dict.fromkeys(("thinned_at", "expiring_at", "expired_at", "trimmed_at"), trimmed),
    }


def _moments(job: Job, time: datetime) -> tuple[datetime, datetime]:
    """When it began and was PROCESSED: twelve seconds after the one before in its chain."""
    step = 12 * (int(job.name[-4:]) % 10)
    return time + timedelta(seconds=_OPENED + 2 + step), time + timedelta(seconds=_OPENED + 11 + step)


def _attempt(
    topology: Topology, number: int, job: Job, time: datetime, attempt_id: int, processed: bool
) -> dict[str, Any]:
    started, staged = _moments(job, time)
    return {
        **_key(topology, number),
        "attempt_id": attempt_id,
        "job": job.name,
        "state": (AttemptState.PROCESSED if processed else AttemptState.RUNNING).value,
        "request_key": f"{job.owner}/{job.name}",
        "generation": "g",
        "incarnation": "i",
        "requested_at": time + timedelta(seconds=_OPENED + 1),
        "started_at": started,
        "processed_at": staged if processed else None,
        "waited_for": [],
        **{name: dict.fromkeys((*job.inlets, *job.outlets), 7 * 10**18) for name in ("inputs", "previous", "bases")},
        "staged": {},
        "code": {},
    }


def _progress(
    topology: Topology, number: int, job: Job, time: datetime, attempt_id: int, written: bool, processed: bool
) -> dict[str, Any]:
    staged = _moments(job, time)[1]
    state = TableState.WRITTEN if written else TableState.PROCESSED if processed else TableState.PENDING
    return {
        **_key(topology, number),
        "table_name": job.outlets[0],
        "job": job.name,
        "state": state.value,
        "snapshot_id": 7 * 10**18 + attempt_id if processed else None,
        "attempt_id": attempt_id if processed else None,
        "processed_at": staged if processed else None,
        "written_at": time + timedelta(seconds=_COMMIT) if written else None,
    }
