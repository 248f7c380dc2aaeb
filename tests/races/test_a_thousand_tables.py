"""Publishing a thousand tables in one step while others write to a hundred of them all the time.

All refs of a table live behind one pointer, so each of the writers' commits overtakes the publish of that table. It
ends all the same, no table is torn or lost, nor is a commit of the writers; and what it costs is counted.
"""

from __future__ import annotations

import itertools
import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from sqlalchemy import Engine, event, text

from airflow_barrier.coordinator.committing import Committed, commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close
from airflow_barrier.protocol.names import Stamp
from airflow_barrier.protocol.records import Barrier, StagedTable
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.spark.spec import ClosingRecord
from airflow_barrier.tables._catalog import Drafts, Edit
from airflow_barrier.tables._commit import Committer
from airflow_barrier.tables._documents import Documents
from airflow_barrier.tables._metadata import EMPTY_ROOT, Changes, Document, lineage, ref_of, snapshots_of
from tests.races.racers import Racers
from tests.races.writing import append
from tests.support.reporting import report
from tests.support.runs import run_of
from tests.support.shop import MONDAY
from tests.support.waiting import wait_for

COUNT, BUSY, WRITERS = 1000, 100, 2
TABLES = tuple(f"wide.t{number:04}" for number in range(COUNT))
JOBS = tuple(Job(f"job{first:04}", "wide_dag", outlets=TABLES[first : first + BUSY]) for first in range(0, COUNT, BUSY))
FRAGMENT = Fragment("wide", "wide_dag", JOBS)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.embedded(str(tmp_path))


@pytest.fixture
def deployment(settings: Settings) -> Iterator[Deployment]:
    """A thousand tables: one that was made, and copies of it."""
    deployment = Deployment.connect(settings)
    catalog, documents = deployment.tables.catalog, deployment.tables._documents
    pointers = deployment.tables._committer._pointers
    catalog.create_namespace("wide")
    first = catalog.create_table(TABLES[0], Schema(NestedField(1, "n", LongType())))
    original: Document = documents.read(first.metadata_location)
    rows = []
    for table in TABLES[1:]:
        location = f"{original['location'].rpartition('/')[0]}/{table.partition('.')[2]}"
        document = {**original, "table-uuid": str(uuid.uuid4()), "location": location}
        rows.append({"name": table.partition(".")[2], "at": f"{location}/metadata/00000-{uuid.uuid4()}.metadata.json"})
        documents.write_bytes(rows[-1]["at"], json.dumps(document).encode())
    with pointers.transaction() as connection:
        copy = (
            "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type) "
            "VALUES ('lake', 'wide', :name, :at, 'TABLE')"
        )
        connection.execute(text(copy), rows)
    yield deployment
    deployment.close()


def opened(deployment: Deployment, day: int) -> Barrier:
    found = open_barrier(
        deployment, FRAGMENT, MONDAY.replace(day=day), timestamp_from="test", run=run_of(f"{day}"), actor="test"
    )
    assert isinstance(found, Opened)
    return found.barrier


def begun(deployment: Deployment, barrier: Barrier, job: Job) -> Ready:
    ready = begin(deployment, barrier, job.name, Asking(request_key=job.name, generation="g0", actor="test"))
    assert isinstance(ready, Ready)
    return ready


def staged(deployment: Deployment, ready: Ready) -> ClosingRecord:
    """A snapshot without rows on each branch, all in one commit: a thousand Spark writes would take minutes."""

    def edit(document: Document, location: str) -> Changes:
        root = snapshots_of(document)[ref_of(document, ready.spec.branch)]
        snapshot = {
            **root,
            "snapshot-id": uuid.uuid4().int >> 65,
            "parent-snapshot-id": root["snapshot-id"],
            "sequence-number": document["last-sequence-number"] + 1,
            "summary": {key: value for key, value in root["summary"].items() if key != EMPTY_ROOT},
        }
        return Changes(branches={ready.spec.branch: snapshot["snapshot-id"]}, snapshot=snapshot)

    committer = deployment.tables._committer
    committer.commit(dict.fromkeys(ready.spec.bases, edit))
    heads = {t: ref_of(d, ready.spec.branch) for t, d in committer.read(list(ready.spec.bases)).items()}
    return ClosingRecord(ready.attempt.attempt_id, {t: StagedTable(t, head) for t, head in heads.items()})


def keep_writing(
    deployment: Deployment, stamp: Stamp, tables: tuple[str, ...], barrier_id: int
) -> dict[str, list[int]]:
    """Append to the next barrier's branch, table after table, until ``barrier_id`` is COMMIT."""
    written: dict[str, list[int]] = {table: [] for table in tables}
    for number in itertools.count():
        table = tables[number % len(tables)]
        written[table].append(append(deployment.tables, table, [{"n": number}], stamp))
        if number >= len(tables) and deployment.meta.barriers.get("wide", barrier_id).state is BarrierState.COMMIT:
            break
    return written


class Counted:
    """What this process does to databases and metadata documents, and how long it keeps all others from writing."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.seconds_locked = 0.0
        self._locked_since = 0.0

    @contextmanager
    def counting(self) -> Iterator[None]:
        def called(owner: type, name: str) -> Any:
            original = getattr(owner, name)

            def method(*arguments: Any, **named: Any) -> Any:
                self.calls[f"{owner.__name__}.{name}"] += 1
                return original(*arguments, **named)

            return method

        with pytest.MonkeyPatch.context() as patch:
            for owner, name in ((Committer, "_draft"), (Documents, "read"), (Documents, "write")):
                patch.setattr(owner, name, called(owner, name))
            event.listen(Engine, "before_cursor_execute", self._executed)
            event.listen(Engine, "commit", self._committed)
            try:
                yield
            finally:
                event.remove(Engine, "before_cursor_execute", self._executed)
                event.remove(Engine, "commit", self._committed)

    def _executed(self, connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        self.calls["statements"] += 1
        if statement == "BEGIN IMMEDIATE":
            self._locked_since = time.perf_counter()

    def _committed(self, connection: Any) -> None:
        if self._locked_since:
            self.seconds_locked = max(self.seconds_locked, time.perf_counter() - self._locked_since)
            self._locked_since = 0.0


@contextmanager
def overtaken(shares: Sequence[Sequence[str]]) -> Iterator[None]:
    """What this process drafts is joined once a table of each share has moved on."""
    original = Committer.draft

    def draft(committer: Committer, edits: Mapping[str, Edit]) -> Drafts:
        drafts = original(committer, edits)

        def met() -> bool:
            now = committer.locations(table for share in shares for table in share)
            return all(any(now[table] != drafts[table].based_on for table in share) for share in shares)

        wait_for("a commit of each writer", met)
        return drafts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Committer, "draft", draft)
        yield


@pytest.mark.timeout(600)
@pytest.mark.drawn("large ones")
def test_publishing_a_thousand_tables_ends_while_writers_keep_staging(
    deployment: Deployment, settings: Settings
) -> None:
    first, second = opened(deployment, 1), opened(deployment, 2)
    for job in JOBS:
        ready = begun(deployment, first, job)
        close(deployment, ready.attempt, record=staged(deployment, ready), actor="test")
    ahead = begun(deployment, second, JOBS[0])
    shares = [JOBS[0].outlets[writer::WRITERS] for writer in range(WRITERS)]
    counted = Counted()
    with Racers([settings] * WRITERS) as writers:
        writers.start([(keep_writing, (ahead.attempt.stamp, share, first.barrier_id)) for share in shares])
        with counted.counting(), overtaken(shares):
            committed = commit_barrier(deployment, "wide", first.barrier_id, actor="committer")
        written = {table: ids for share in writers.finish() for table, ids in share.items()}
    assert isinstance(committed, Committed)
    assert committed.barrier.state is BarrierState.COMMIT
    wanted = {each.table: each.snapshot_id for each in deployment.meta.barriers.progress("wide", first.barrier_id)}
    documents = deployment.tables._committer.read(TABLES)
    assert {table: ref_of(document, "main") for table, document in documents.items()} == wanted, "none lost, none torn"
    for table, document in documents.items():
        assert [entry["snapshot-id"] for entry in document["snapshot-log"]] == [wanted[table]], "published once"
        assert ref_of(document, first.tag) == wanted[table]
    for table, ids in written.items():
        head = ref_of(documents[table], ahead.spec.branch)
        assert head is not None
        assert [s["snapshot-id"] for s in lineage(documents[table], head)][: len(ids)] == ids[::-1], "nor a writer's"
    heads = {table: StagedTable(table, ref_of(documents[table], ahead.spec.branch)) for table in ahead.spec.bases}
    close(deployment, ahead.attempt, record=ClosingRecord(ahead.attempt.attempt_id, heads), actor="test")
    commits, calls = sum(map(len, written.values())), counted.calls
    restaged = calls["Committer._draft"] - COUNT
    assert restaged >= WRITERS, "they met"
    report(
        f"races, {COUNT} tables published beside {WRITERS} writers on {BUSY} of them: {commits} commits by writers, "
        f"{restaged} tables restaged under the lock, {calls['statements']} statements, "
        f"{calls['Documents.read']} documents read, {calls['Documents.write']} written, write lock held "
        f"{counted.seconds_locked:.2f} s at most"
    )
