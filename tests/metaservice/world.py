"""A topology in a MetaService, driven as the coordinator drives it, with numbers for snapshots."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

from sqlalchemy import Connection, update

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.attempts import Begun, Request
from airflow_barrier.metaservice.barriers import Opening
from airflow_barrier.metaservice.revisions import NewRevision
from airflow_barrier.metaservice.rows import STANDING
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.records import Attempt, Barrier, Cut, JobStart, StagedTable
from airflow_barrier.protocol.revisions import Revision, RevisionMode, affected_jobs
from airflow_barrier.protocol.states import BarrierState, TableState
from airflow_barrier.protocol.topology import ExternalSource, Job, downstream_jobs
from tests.support.runs import run_of

START = datetime(2017, 1, 1, tzinfo=timezone.utc)
FILES = ExternalSource("files", "files", {"path": "/landing"})
SHOPPING, AMOUNT, PRICE, TOP = "shop.shopping", "shop.amount", "shop.price", "shop.top"

LOAD_JOB = Job("load", "dag", outlets=(SHOPPING,), externals=(FILES,))
AMOUNT_JOB = Job("amount", "dag", inlets=(SHOPPING,), outlets=(AMOUNT,))
PRICE_JOB = Job("price", "dag", inlets=(SHOPPING,), outlets=(PRICE,))
TOP_JOB = Job("top", "dag", inlets=(AMOUNT, PRICE), outlets=(TOP,))
#: A diamond, writers before readers.
JOBS = (LOAD_JOB, AMOUNT_JOB, PRICE_JOB, TOP_JOB)

_snapshots = itertools.count(7_000_000_000_000_000_001)


def day(number: int) -> datetime:
    return START + timedelta(days=number)


def joining(jobs: Sequence[Job], baseline: Mapping[str, int | None]) -> list[JobStart]:
    """How those of ``jobs`` begin whose tables are all new: with what the tables hold, at the barrier before."""
    return [
        JobStart(job.name, None, {table: baseline[table] for table in job.outlets}, {}, {})
        for job in jobs
        if baseline.keys() >= set(job.outlets)
    ]


@contextmanager
def changed_by_hand(meta: MetaService) -> Iterator[Connection]:
    """A transaction for rows that no method changes so, in which all topologies count as changed."""
    with meta._db.transaction(write=True) as connection:
        connection.execute(update(schema.topology).values(changes=schema.topology.c.changes + 1))
        yield connection


class World:
    """One topology. What a method is not told, it makes up."""

    def __init__(self, meta: MetaService, name: str = "shopping", jobs: Sequence[Job] = JOBS) -> None:
        self.meta = meta
        self.name = name
        self.declare(jobs)

    def declare(self, jobs: Sequence[Job], owner: str = "dag") -> int:
        return self.meta.topologies.register(self.name, owner, jobs, "test")

    # --- barriers ---------------------------------------------------------------------------------

    def open(self, number: int, **given: Any) -> Barrier:
        """The next barrier, for day ``number``."""
        head = self.meta.barriers.head(self.name)
        items: Sequence[str] = given.pop("items", ())
        topology = self.meta.topologies.get(self.name)
        baseline = {**dict.fromkeys(self.meta.barriers.unjoined(self.name)), **given.pop("baseline", {})}
        arguments: dict[str, Any] = {
            "topology_version": self.meta.topologies.version(self.name),
            "cuts": [Cut(source.name, None, {"day": number}, tuple(items)) for source in topology.externals],
            "predecessor": head.barrier_id if head else 0,
            "run": run_of(f"scheduled__{number}"),
            "timestamp_from": "data interval end",
            "max_open": 4,
            "baseline": baseline,
            "starts": joining(topology.jobs, baseline),
            "actor": "test",
        }
        return self.meta.barriers.open(Opening(self.name, day(number), **{**arguments, **given}))

    def barrier(self, barrier_id: int) -> Barrier:
        return self.meta.barriers.get(self.name, barrier_id)

    def state(self, barrier_id: int) -> BarrierState:
        return self.barrier(barrier_id).state

    def tables(self, barrier_id: int) -> dict[str, TableState]:
        return {progress.table: progress.state for progress in self.meta.barriers.progress(self.name, barrier_id)}

    def snapshots(self, barrier_id: int) -> dict[str, int | None]:
        return {progress.table: progress.snapshot_id for progress in self.meta.barriers.progress(self.name, barrier_id)}

    def abort(self, barrier_id: int) -> list[int]:
        return [b.barrier_id for b in self.meta.barriers.abort(self.name, barrier_id, "bad input", "test")]

    # --- attempts ---------------------------------------------------------------------------------

    def request(
        self, barrier_id: int, job: str, generation: str = "g1", key: str = "try 1", line: int = STANDING
    ) -> Attempt:
        return self.meta.attempts.request(
            Request(self.name, barrier_id, job, request_key=key, generation=generation, actor="test", line=line)
        )

    def begin(self, barrier_id: int, job: str, key: str = "try 1") -> Begun:
        return self.meta.attempts.begin(
            Request(self.name, barrier_id, job, request_key=key, generation="g1", actor="test")
        )

    def lead(self, barrier_id: int, job: str, key: str = "leader", after_end: bool = False) -> Attempt | None:
        return self.meta.attempts.lead(
            Request(self.name, barrier_id, job, request_key=key, generation="g1", actor="test", owner="dag"),
            after_end=after_end,
        )

    def start(
        self, barrier_id: int, job: str, generation: str = "g1", key: str = "try 1", line: int = STANDING
    ) -> Attempt:
        started = self.meta.attempts.start(self.request(barrier_id, job, generation, key, line).attempt_id)
        assert isinstance(started, Attempt), started
        return started

    def close(self, attempt: Attempt, unchanged: bool = False) -> Attempt:
        return self.meta.attempts.close(attempt.attempt_id, staged(attempt, unchanged), "test")

    def process(
        self, barrier_id: int, job: str, generation: str = "g1", unchanged: bool = False, line: int = STANDING
    ) -> Attempt:
        """The job from request to PROCESSED."""
        attempt = self.start(barrier_id, job, generation, line=line)
        self.close(attempt, unchanged)
        self.meta.attempts.report(attempt.attempt_id, "test")
        return self.meta.attempts.get(attempt.attempt_id)

    def process_all(self, barrier_id: int, generation: str = "g1") -> None:
        """All jobs of the barrier that are not PROCESSED yet, writers before readers."""
        topology = self.meta.topologies.get(self.name, self.barrier(barrier_id).topology_version)
        left = list(topology.jobs)
        while left:
            states = self.tables(barrier_id)
            job = next(each for each in left if all(states[table] is not TableState.PENDING for table in each.inlets))
            left.remove(job)
            if any(states[table] is TableState.PENDING for table in job.outlets):
                self.process(barrier_id, job.name, generation)

    # --- revisions --------------------------------------------------------------------------------

    def revise(
        self, first: int, *changed: str, mode: RevisionMode = RevisionMode.INCREMENTAL, **given: Any
    ) -> Revision:
        """Begin to compute again what stands on the jobs ``changed``, from barrier ``first`` on."""
        version = self.meta.topologies.version(self.name)
        topology = self.meta.topologies.get(self.name, version)
        jobs = affected_jobs(topology, changed)
        new = {
            "topology": self.name,
            "mode": mode,
            "first_barrier": first,
            "predecessor": self.barrier(first).predecessor or 0,
            "window_end": first,
            "tables": sorted(outlet for job in jobs for outlet in topology.job(job).outlets),
            "jobs": jobs,
            "changed": changed,
            "topology_version": version,
            "reason": "corrected",
            "actor": "person",
        }
        return self.meta.revisions.begin(NewRevision(**{**new, **given}))

    def replay(self, revision: Revision, *barriers: int) -> None:
        """Each job of the revision that is not PROCESSED yet, at these of its barriers, or at all."""
        line, topology = revision.revision, self.meta.topologies.get(self.name)
        # writers before readers: more stands on these
        jobs = sorted(revision.jobs, key=lambda job: -len(downstream_jobs(topology, job)))
        for barrier_id in barriers or [each.barrier_id for each in self.meta.revisions.barriers(self.name, line)]:
            for job in jobs:
                rows = self.meta.revisions.progress(self.name, line, barrier_id)
                if any(row.job == job and row.state is TableState.PENDING for row in rows):
                    self.process(barrier_id, job, line=line)

    def begin_swap(self, revision: Revision, head: int | None = None) -> Revision:
        at = self.meta.answers.readable(self.name)[-1].barrier_id if head is None else head
        return self.meta.revisions.begin_swap(self.name, revision.revision, at, self.snapshots(at), "person")

    def swap(self, revision: Revision) -> bool:
        """Whether it was this call that published."""
        with self.meta.revisions.swapping(self.name, revision.revision, "person") as connection:
            return connection is not None

    def revised(self, first: int, *changed: str) -> Revision:
        """A revision from its begin to COMMIT."""
        revision = self.revise(first, *changed)
        self.replay(revision)
        self.begin_swap(revision)
        assert self.swap(revision)
        return self.meta.revisions.get(self.name, revision.revision)

    # --- commit and reading -----------------------------------------------------------------------

    def begin_commit(self, barrier_id: int, expected: Mapping[str, int | None] | None = None) -> Barrier:
        found = dict.fromkeys(self.tables(barrier_id)) if expected is None else expected
        return self.meta.publishing.begin(self.name, barrier_id, found, "test")

    def publish(self, barrier_id: int) -> bool:
        """Whether it was this call that published."""
        with self.meta.publishing.swapping(self.name, barrier_id, "test") as connection:
            return connection is not None

    def commit(self, barrier_id: int) -> None:
        self.begin_commit(barrier_id)
        assert self.publish(barrier_id)

    def committed(self, number: int) -> Barrier:
        """A barrier from opening to COMMIT."""
        barrier = self.open(number)
        self.process_all(barrier.barrier_id)
        self.commit(barrier.barrier_id)
        return self.barrier(barrier.barrier_id)

    def served(self, level: Level) -> dict[str, int]:
        """Table -> the barrier that a reader at ``level`` gets it at."""
        return {name: table.barrier_id for name, table in self.meta.answers.resolve(self.name, level).tables.items()}


def staged(attempt: Attempt, unchanged: bool = False) -> dict[str, StagedTable]:
    """A closing record's tables: new snapshots for all outlets, or all unchanged."""
    return {table: StagedTable(table, None if unchanged else next(_snapshots), unchanged) for table in attempt.bases}
