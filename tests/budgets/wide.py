"""A topology of many tables on an object store, whose steps are counted; each task has a deployment of its own."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from airflow_barrier.coordinator.committing import Committed, commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close
from airflow_barrier.protocol.records import Barrier, StagedTable
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.spark.spec import ClosingRecord
from airflow_barrier.tables._metadata import EMPTY_ROOT, Changes, Document, lineage, ref_of
from tests.support.runs import run_of
from tests.support.shop import MONDAY
from tests.support.slow_store import SlowStore


@dataclass
class Wide:
    """``jobs`` jobs with ``each`` tables; all but the first read one of the first one's.

    ``requests``: of each step, by kind, of all barriers since it was last emptied; ``seconds`` likewise.
    """

    store: SlowStore
    folder: Path
    jobs: int
    each: int
    requests: dict[str, Counter[str]] = field(default_factory=dict)
    seconds: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        catalog = f"sqlite:///{self.folder}/barrier.db"
        storage = tuple(self.store.properties.items())
        self.settings = Settings(catalog, catalog, "s3://lake/warehouse", catalog_properties=storage)
        tables = [tuple(f"wide.t{job:02}x{n:02}" for n in range(self.each)) for job in range(self.jobs)]
        self.fragment = Fragment(
            "wide",
            "wide_dag",
            tuple(
                Job(f"job{job:02}", "wide_dag", inlets=tables[0][:1] if job else (), outlets=outlets)
                for job, outlets in enumerate(tables)
            ),
        )
        with self._task() as deployment:
            _make(deployment, [table for outlets in tables for table in outlets])

    def barrier(self, day: int) -> Barrier:
        """Open, compute and commit one, each step as a task of its own."""
        with self._task() as deployment, self._counted("open"):
            opened = open_barrier(
                deployment,
                self.fragment,
                MONDAY + timedelta(days=day),
                timestamp_from="test",
                run=run_of(f"wide_dag/{day}"),
                actor="test",
            )
        assert isinstance(opened, Opened)
        for job in self.fragment.jobs:
            with self._task() as deployment, self._task() as engine:
                with self._counted("begin"):
                    ready = begin(deployment, opened.barrier, job.name, Asking(f"{day}/{job.name}", "g0", "test"))
                assert isinstance(ready, Ready)
                record = _staged(engine, ready)
                with self._counted("close"):
                    close(deployment, ready.attempt, record=record, actor="test")
        with self._task() as deployment, self._counted("commit"):
            committed = commit_barrier(deployment, "wide", opened.barrier.barrier_id, actor="test")
        assert isinstance(committed, Committed)
        return committed.barrier

    @contextmanager
    def _task(self) -> Iterator[Deployment]:
        with closing(Deployment.connect(self.settings)) as deployment:
            yield deployment

    @contextmanager
    def _counted(self, step: str) -> Iterator[None]:
        before, begun = Counter(self.store.counts), time.monotonic()
        yield
        self.requests[step] = self.requests.get(step, Counter()) + (Counter(self.store.counts) - before)
        self.seconds[step] += time.monotonic() - begun


def _make(deployment: Deployment, tables: Sequence[str]) -> None:
    """One that pyiceberg makes, and copies of its document."""
    catalog, documents = deployment.tables.catalog, deployment.tables._documents
    catalog.create_namespace("wide")
    first = catalog.create_table(tables[0], Schema(NestedField(1, "n", LongType())))
    original = documents.read(first.metadata_location)
    for table in tables[1:]:
        folder = f"{original['location'].rpartition('/')[0]}/{table.rpartition('.')[2]}"
        document = {**original, "table-uuid": str(uuid.uuid4()), "location": folder}
        at = f"{folder}/metadata/00000-{uuid.uuid4()}.metadata.json"
        documents.write_bytes(at, json.dumps(document).encode())
        catalog.register_table(table, at)


def _staged(engine: Deployment, ready: Ready) -> ClosingRecord:
    """An empty snapshot on each branch, as an engine's commit would put one there."""
    branch, heads = ready.spec.branch, {}

    def edit(document: Document, _: str) -> Changes:
        base = next(lineage(document, ref_of(document, branch) or 0))
        snapshot = {
            **base,
            "snapshot-id": uuid.uuid4().int >> 65,
            "parent-snapshot-id": base["snapshot-id"],
            "sequence-number": document["last-sequence-number"] + 1,
            "summary": {
                **{key: value for key, value in base["summary"].items() if key != EMPTY_ROOT},
                **ready.spec.stamp.properties(),
            },
        }
        return Changes(branches={branch: snapshot["snapshot-id"]}, snapshot=snapshot)

    committer = engine.tables._committer
    committer.commit(dict.fromkeys(ready.spec.bases, edit))
    for table, document in committer.read(list(ready.spec.bases)).items():
        heads[table] = StagedTable(table, ref_of(document, branch))
    return ClosingRecord(ready.attempt.attempt_id, heads)
