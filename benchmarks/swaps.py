"""How long the swap of a revision takes where it has many tables: without Spark, on the tables' metadata alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.revisions.begin import begin_revision, plan_revision
from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.coordinator.revisions.publish import Swapped, publish_revision
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.metaservice.attempts import Request
from airflow_barrier.protocol.names import tag_name
from airflow_barrier.protocol.records import Attempt, Barrier, StagedTable
from airflow_barrier.protocol.topology import Job
from airflow_barrier.tables.iceberg import new_snapshot_id
from benchmarks.lake import Grown, grow, make_tables
from benchmarks.report import Measured
from tests.metaservice.world import World
from tests.scale.history import multiply
from tests.support.postgresql import PASSWORD, USER, PostgreSQL, without_password

_TABLES = 100
_BARRIERS = 31
#: Barriers that a revision replays -> how often it is measured.
_REPLAYED = {1: 3, 30: 3}
_TOPOLOGY, _JOB = "wide", "load"
_FIRST_ID = 4_000_000_000_000_000_000


@dataclass(frozen=True)
class Swap:
    """Seconds from the durable decision to COMMIT, by the database's clock, and of the whole call."""

    decided: float
    whole: float


def measure_swaps(folder: Path, *, quick: bool) -> list[Measured]:
    tables, barriers, replayed = (3, 3, {1: 1, 2: 1}) if quick else (_TABLES, _BARRIERS, _REPLAYED)
    rows = []
    with PostgreSQL(fsync="on", full_page_writes="on") as server, server.database() as database:
        server.run(f"GRANT SET ON PARAMETER session_replication_role TO {USER}", database=database)
        url = without_password(database)
        kinds = {
            "SQLite": Settings.embedded(str(folder / "sqlite")),
            "PostgreSQL": Settings(
                url, url, str(folder / "postgresql"), metaservice_password=PASSWORD, catalog_password=PASSWORD
            ),
        }
        for kind, settings in kinds.items():
            Path(settings.warehouse).mkdir()
            with _history(settings, tables, barriers) as deployment:
                for count, times in replayed.items():
                    swaps = [_swap(deployment, barriers - count + 1) for _ in range(times)]
                    decided, whole = (median(getattr(swap, part) for swap in swaps) for part in ("decided", "whole"))
                    rows.append([f"{count}, {kind}", f"{decided:.3f}", f"{whole:.3f}"])
    return [
        Measured(
            "The swap of a revision",
            f"`publish_revision` of {tables} tables, all of which the revision has computed again: `main` of each to "
            "its new snapshot, a tag for each table and each barrier, and the exchange of the MetaService's lines, in "
            "one transaction of the database that MetaService and catalog share. What is staged are snapshots without "
            f"rows; no Spark in it. {barriers} barriers of history. Medians of "
            f"{', '.join(f'{times} ({count} replayed)' for count, times in replayed.items())}. *To COMMIT*: from the "
            "durable decision, by the database's clock; *the whole call* includes the look at all tables before it, "
            "and the journal and tidying after it. Readers go on meanwhile. PostgreSQL with fsync.",
            ["barriers replayed", "to COMMIT, seconds", "the whole call, seconds"],
            rows,
        )
    ]


@contextmanager
def _history(settings: Settings, tables: int, barriers: int) -> Iterator[Deployment]:
    """Two barriers step by step in the MetaService, and the others as copies of the second."""
    deployment = Deployment.connect(settings)
    try:
        names = [f"wide.t{number:04}" for number in range(tables)]
        make_tables(deployment.tables, names)
        line = [
            Grown(_FIRST_ID + number, {}, ["main"], {tag_name(_TOPOLOGY, number, 0): _FIRST_ID + number})
            for number in range(1, barriers + 1)
        ]
        grow(deployment.tables, names, line, dict.fromkeys(names))
        world = World(deployment.meta, _TOPOLOGY, [Job(_JOB, "dag", outlets=tuple(names))])
        for number in (1, 2):
            barrier = world.open(number)
            _process(deployment, barrier, _FIRST_ID + number)
            world.commit(barrier.barrier_id)
        with deployment.meta._db.transaction(write=True) as connection:
            multiply(connection, template=2, last=barriers)
        yield deployment
    finally:
        deployment.close()


def _swap(deployment: Deployment, first: int) -> Swap:
    """Revise from a barrier on to the head."""
    meta = deployment.meta
    plan = plan_revision(deployment, Wanted(_TOPOLOGY, first))
    revision = begin_revision(deployment, plan, reason="wrong", actor="benchmark")
    attempts, line = [], []
    for barrier in meta.revisions.barriers(_TOPOLOGY, revision.revision):
        head = new_snapshot_id()
        attempts.append(_process(deployment, barrier, head))
        stamp = attempts[-1].stamp
        line.append(Grown(head, stamp.properties(), [stamp.branch]))
    grow(deployment.tables, revision.tables, line, attempts[0].bases)
    began = time.perf_counter()
    swapped = publish_revision(deployment, _TOPOLOGY, revision.revision, actor="benchmark")
    whole = time.perf_counter() - began
    assert isinstance(swapped, Swapped), swapped
    assert set(deployment.tables.mains(revision.tables).values()) == {line[-1].head}
    done = swapped.revision
    assert done.committing_at is not None
    assert done.commit_at is not None
    return Swap((done.commit_at - done.committing_at).total_seconds(), whole)


def _process(deployment: Deployment, barrier: Barrier, head: int) -> Attempt:
    """An attempt of the one job, all of whose tables come to the same snapshot: ids are a table's own."""
    meta = deployment.meta
    requested = meta.attempts.request(
        Request(
            barrier.topology,
            barrier.barrier_id,
            _JOB,
            request_key="task",
            generation="g",
            actor="benchmark",
            line=barrier.line,
        ),
    )
    attempt = meta.attempts.start(requested.attempt_id)
    assert isinstance(attempt, Attempt), attempt
    staged = {table: StagedTable(table, head) for table in attempt.bases}
    meta.attempts.close(attempt.attempt_id, staged, "benchmark")
    meta.attempts.report(attempt.attempt_id, "benchmark")
    return attempt
