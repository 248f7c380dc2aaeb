"""What it costs to look at many large topologies: each route of the API that the page asks, over a real server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx
from sqlalchemy import Connection, Table, create_engine, func, insert, select, update

from airflow_barrier.cli.connection import PASSWORD_VARIABLE
from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.records import BarrierKind
from airflow_barrier.protocol.states import AttemptState, BarrierState, TableState
from airflow_barrier.protocol.topology import Job, Topology
from benchmarks.metaservice import database
from benchmarks.report import Measured
from tests.support.postgresql import PASSWORD, PostgreSQL, with_driver, without_password

_TOPOLOGIES, _TABLES, _BARRIERS, _QUESTIONS = 50, 1_000, 10_000, 100
#: Barriers whose tables and attempts are still known; the older ones were trimmed.
_KNOWN = 16
_CADENCE = timedelta(minutes=10)
#: Of the newest barrier, which is late by then.
_AGE = timedelta(minutes=9)
#: Seconds after the timestamp.
_OPENED, _PRECOMMIT, _COMMIT = 4, 130, 140
_ROWS = 10_000
_GOAL = 100


def measure(folder: Path, *, quick: bool) -> list[Measured]:
    sizes = (3, 20, 50, 5) if quick else (_TOPOLOGIES, _TABLES, _BARRIERS, _QUESTIONS)
    topologies, tables, barriers, questions = sizes
    some = topologies // 10 or 1
    routes = {
        "all topologies": "topologies",
        _since(some): "topologies",
        _since(topologies): "topologies",
        "one topology": "topologies/topology_00",
        "its grid: 14 barriers, 200 tables": "topologies/topology_00/grid",
        "the same, half of the history ago": f"topologies/topology_00/grid?before={barriers // 2}",
        "the open barrier": f"topologies/topology_00/barriers/{barriers}",
        "the one before": f"topologies/topology_00/barriers/{barriers - 1}",
        "where its time went": f"topologies/topology_00/barriers/{barriers - 1}/delay",
        "50 barriers": "topologies/topology_00/barriers",
        "delay over 7 days": "topologies/topology_00/delay",
    }
    rows, events = [], []
    with PostgreSQL(fsync="on", full_page_writes="on", shared_buffers="128MB") as server:  # as by default
        for kind in ("SQLite", "PostgreSQL"):
            with database(kind, folder, server) as url:
                meta = make(url, topologies, tables, barriers)
                if kind == "PostgreSQL":  # as autovacuum does, which the tests' server does without
                    server.run("VACUUM ANALYZE", database=url)
                changed = {_since(count): count for count in (some, topologies)}
                arguments = ("--metaservice-url", without_password(url))
                base = "v1/deployments/metaservice"
                with served(*arguments, below=base, environment={PASSWORD_VARIABLE: PASSWORD}) as (client, _):
                    rows += [
                        [what, kind, *_asked(client, path, questions, partial(_change, meta, changed.get(what, 0)))]
                        for what, path in routes.items()
                    ]
                    told = sorted(
                        _until_told(client, meta, f"topology_{number % topologies:02}")
                        for number in range(questions // 5)
                    )
                events.append([kind, str(len(told)), f"{told[len(told) // 2]:.2f}", f"{told[-1]:.2f}"])
                meta.close()
    return [
        Measured(
            "The read API",
            f"`airflow-barrier serve` over {topologies} topologies of {tables:,} tables and {barriers:,} barriers each "
            f"(tables and attempts of the newest {_KNOWN}, the older ones are trimmed; one barrier is open in each, "
            f"held up by {tables // 40} late jobs), asked {questions} times by one client on the same machine, the "
            "first time included. What a process has found out about a topology it keeps until that changes. "
            "PostgreSQL with fsync, over loopback.",
            ["route", "MetaService", "median, ms", "p95, ms", "first, ms", "kB"],
            sorted(rows, key=lambda row: list(routes).index(row[0])),
            [f"goal: at most {_GOAL} ms at the 95th percentile; the most found: {max(int(row[3]) for row in rows)} ms"],
        ),
        Measured(
            "An event",
            "In the same server: from a change's commit in the MetaService until a client that listens has the event.",
            ["MetaService", "events", "median, s", "most, s"],
            events,
        ),
        Measured(
            "The plugin in a process of Airflow",
            "Each process of Airflow imports the plugin; CPU in new interpreters, Airflow's own beside.",
            ["", "least, ms CPU", "median, ms CPU"],
            _imports(questions // 10 or 1),
        ),
    ]


@contextmanager
def served(*arguments: str, below: str, environment: Mapping[str, str]) -> Iterator[tuple[httpx.Client, int]]:
    """A client of `airflow-barrier serve` for what is ``below`` its address, and the server's process."""
    with subprocess.Popen(
        [str(Path(sys.executable).parent / "airflow-barrier"), "serve", "--port", "0", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            base = server.stdout.readline().partition(" at ")[2].partition("/v1 ")[0]
            with httpx.Client(base_url=f"{base}/{below}", timeout=60) as client:
                yield client, server.pid
        finally:
            server.terminate()


def _imports(times: int) -> list[list[str]]:
    modules: dict[str, list[float]] = {
        "airflow.plugins_manager, airflow.sdk": [],
        "airflow_barrier.plugins.barrier": [],
    }
    told = "; ".join(f"began = process_time(); import {each}; print(process_time() - began)" for each in modules)
    for _ in range(times):
        command = [sys.executable, "-c", f"from time import process_time; {told}"]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-len(modules) :]
        for seconds, each in zip(found, modules.values(), strict=True):
            each.append(float(seconds) * 1e3)
    return [[name, f"{min(each):.0f}", f"{median(each):.0f}"] for name, each in modules.items()]


def _since(changed: int) -> str:
    return f"the same, {changed} changed since"


def _change(meta: MetaService, topologies: int) -> None:
    """So many have, as far as whoever looks can tell."""
    if not topologies:
        return
    names = [f"topology_{number:02}" for number in range(topologies)]
    with meta._db.transaction(write=True) as connection:
        connection.execute(
            update(schema.topology)
            .where(schema.topology.c.name.in_(names))
            .values(changes=schema.topology.c.changes + 1)
        )


def _asked(client: httpx.Client, path: str, questions: int, prepare: Callable[[], None]) -> list[str]:
    times = []
    for _ in range(questions):
        prepare()
        began = time.perf_counter()
        answer = client.get(path)
        times.append((time.perf_counter() - began) * 1e3)
        answer.raise_for_status()
    cuts = quantiles(times, n=20, method="inclusive")
    return [*(f"{each:.0f}" for each in (cuts[9], cuts[18], times[0])), f"{len(answer.content) / 1e3:,.0f}"]


def _until_told(client: httpx.Client, meta: MetaService, topology: str) -> float:
    """Seconds from a change until its event. Before it there are the counts as they are."""
    changes = meta.topologies.change_count(topology) + 1
    with client.stream("GET", "events") as stream:
        lines = stream.iter_lines()
        while f'"changes":{changes - 1}' not in (line := next(lines)) or topology not in line:
            pass
        meta.barriers.abort(topology, meta.barriers.newest(topology, limit=1)[0].barrier_id, "benchmark", "benchmark")
        began = time.perf_counter()
        while topology not in (line := next(lines)):
            pass
        return time.perf_counter() - began


def make(url: str, topologies: int, tables: int, barriers: int) -> MetaService:
    """So many topologies of so many tables in ten DAGs, and of so many barriers, ten minutes apart.

    The newest barrier is open: its last jobs run. The others are COMMIT, and all but the newest 16 were trimmed.
    """
    meta = MetaService(url)
    engine = create_engine(with_driver(url))
    first = "topology_00"
    for name in (f"topology_{number:02}" for number in range(topologies)):
        jobs = [_job(name, table, tables) for table in range(tables)]
        for owner in sorted({job.owner for job in jobs}):
            version = meta.topologies.register(
                name, owner, [job for job in jobs if job.owner == owner], actor="benchmark"
            )
        with engine.begin() as connection:
            if name == first:
                _fill(connection, Topology.of(name, jobs), version, barriers)
            else:
                _copy(connection, first, name)
    engine.dispose()
    return meta


def _copy(connection: Connection, first: str, name: str) -> None:
    """What there is of the ``first`` topology, under another name: in a tenth of the time."""
    last = connection.execute(select(func.max(schema.attempt.c.attempt_id))).scalar_one()
    for table in (schema.barrier, schema.attempt, schema.table_progress):
        values = {column.name: column for column in table.columns}
        for renamed in {"topology", "run_dag_id", "request_key", "table_name"}.intersection(values):
            values[renamed] = func.replace(table.c[renamed], first, name)
        if "attempt_id" in values:
            values["attempt_id"] = table.c.attempt_id + last
        copies = select(*values.values()).where(table.c.topology == first)
        connection.execute(insert(table).from_select(list(values), copies))


def _job(topology: str, table: int, tables: int) -> Job:
    """In chains of ten, which a critical path follows."""

    def name(number: int) -> str:
        return f"{topology}.table_{number:04}"

    owner = f"{topology}_dag_{table * 10 // tables}"
    return Job(f"job_{table:04}", owner, (name(table - 1),) if table % 10 else (), (name(table),))


def _fill(connection: Connection, topology: Topology, version: int, barriers: int) -> None:
    newest = datetime.now(timezone.utc) - _AGE
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
