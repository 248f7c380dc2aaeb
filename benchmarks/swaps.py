"""How long the swap of a revision takes where it has many tables: without Spark, on the tables' metadata alone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.revising import Wanted, begin_revision, plan_revision
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.swapping import Swapped, publish_revision
from airflow_barrier.protocol.names import Stamp
from airflow_barrier.protocol.records import Attempt, Barrier, StagedTable
from benchmarks.history import make_history
from benchmarks.lake import stage_on
from benchmarks.report import Measured
from tests.support.postgresql import PASSWORD, USER, PostgreSQL, without_password

_TABLES = 100
_BARRIERS = 31
#: Barriers that a revision replays -> how often it is measured.
_REPLAYED = {1: 3, 30: 3}
_TOPOLOGY = "wide"


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
    deployment = Deployment.connect(settings)
    try:
        make_history(deployment, _TOPOLOGY, [f"wide.t{number:04}" for number in range(tables)], barriers)
        yield deployment
    finally:
        deployment.close()


def _swap(deployment: Deployment, first: int) -> Swap:
    """Revise from a barrier on to the head."""
    meta = deployment.meta
    plan = plan_revision(deployment, Wanted(_TOPOLOGY, first))
    revision = begin_revision(deployment, plan, reason="wrong", actor="benchmark")
    heads: dict[str, int] = {}
    for barrier in meta.revisions.barriers(_TOPOLOGY, revision.revision):
        heads = _stage(deployment, barrier, revision.jobs[0])
    began = time.perf_counter()
    swapped = publish_revision(deployment, _TOPOLOGY, revision.revision, actor="benchmark")
    whole = time.perf_counter() - began
    assert isinstance(swapped, Swapped), swapped
    assert deployment.tables.mains(heads) == heads
    done = swapped.revision
    assert done.committing_at is not None
    assert done.commit_at is not None
    return Swap((done.commit_at - done.committing_at).total_seconds(), whole)


def _stage(deployment: Deployment, barrier: Barrier, job: str) -> dict[str, int]:
    """An attempt of the one job, with an empty snapshot in each of its tables, all of them in one commit."""
    meta = deployment.meta
    requested = meta.request_attempt(
        barrier.topology,
        barrier.barrier_id,
        job,
        request_key="task",
        generation="g",
        actor="benchmark",
        line=barrier.line,
    )
    attempt = meta.start_attempt(requested.attempt_id)
    assert isinstance(attempt, Attempt), attempt
    stamps: Mapping[str, Stamp] = dict.fromkeys(attempt.bases, attempt.stamp)
    heads = stage_on(deployment.tables, stamps, attempt.bases)
    staged = {table: StagedTable(table, head) for table, head in heads.items()}
    meta.close_attempt(attempt.attempt_id, staged, "benchmark")
    meta.report_processed(attempt.attempt_id, "benchmark")
    return heads
