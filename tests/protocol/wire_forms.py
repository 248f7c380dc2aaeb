"""A value of each class that is written down, with something in each of its fields, and what it is written as."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow_barrier.coordinator.waiting import (
    AnyCondition,
    AttemptEnd,
    Condition,
    CutMade,
    Delivered,
    DelivererEnd,
    RevisionEnd,
    Room,
    Unseen,
)
from airflow_barrier.protocol.codec import decode, encode
from airflow_barrier.protocol.deliveries import Rows, SinkDeclaration
from airflow_barrier.protocol.journal import (
    DecidedTable,
    JournalEntry,
    JournalHead,
    RevisionEntry,
    TrimmedEntries,
)
from airflow_barrier.protocol.records import BarrierKind, Cut, RunRef, StagedTable
from airflow_barrier.protocol.revisions import Revision, RevisionMode, RevisionState, TableCorrection
from airflow_barrier.protocol.snapshots import ChangedFile, ChangedFiles, TableDelta
from airflow_barrier.protocol.topology import ExternalSource, Job, Topology
from airflow_barrier.sources.postgresql.segments import ChangeFile, Segment
from airflow_barrier.spark.batch import Following
from airflow_barrier.spark.corrections import CorrectBySql, Correction, ReplaceByFile, ReuseRows
from airflow_barrier.spark.delivering import Extract
from airflow_barrier.spark.extracting import Order
from airflow_barrier.spark.spec import ClosingRecord, EpochSpec, digest_of

#: Name -> text, as the code before the codec wrote it.
WRITTEN: dict[str, str] = json.loads(Path(__file__).with_suffix(".json").read_text())

DAY = datetime(2017, 1, 2, 12, 30, 0, 1, tzinfo=timezone.utc)
NONCE = "0123456789abcdef"
KEY = "5c" * 32
TILLS = ExternalSource("tills", "files", {"location": "s3://in/tills", "columns": ["a", "b"], "size": None})
CUT = Cut("tills", {"time": "2017-01-01"}, {"time": "2017-01-02", "n": 2.5}, ("a.csv", "ä.csv"))
RUN = RunRef("shopping", "manual__1", "manual", DAY)
ENTRY = JournalEntry(
    topology="shopping",
    barrier_id=7,
    computed_in=2,
    incarnation="i1",
    predecessor=5,
    timestamp=DAY,
    timestamp_from="the end of the run's data interval",
    kind=BarrierKind.EPOCH,
    run=RUN,
    topology_digest="d1",
    cuts={"tills": CUT, "later": Cut.later("later", "it was away")},
    tables={
        "shop.a": DecidedTable("load", 4711, None, None, "file:///lake/a/1.json"),
        "shop.b": DecidedTable(None, None, 4710, 5, "file:///lake/b/1.json"),
    },
)
MAINTENANCE = replace(ENTRY, kind=BarrierKind.MAINTENANCE, run=RunRef("", "", ""), cuts={}, trimmed=True)
REVISION = Revision(
    topology="shopping",
    revision=2,
    state=RevisionState.COMMITTING,
    mode=RevisionMode.FULL,
    first_barrier=3,
    predecessor=2,
    window_end=4,
    tables=("shop.a", "shop.b"),
    jobs=("load",),
    changed=(),
    gated=True,
    created_at=DAY,
    actor="anna",
    reason=None,
    head=7,
    last=8,
    expected={"shop.a": 4709, "shop.b": None},
    corrections=(TableCorrection(3, "shop.a", {"kind": "reuse", "table": "shop.a", "start": None, "end": 8}),),
    reused=("shop.b",),
    recut=("tills",),
    committing_at=DAY + timedelta(hours=1),
)
TOPOLOGY = Topology.of(
    "shopping",
    [
        Job("load", "shopping", outlets=("shop.a",), externals=(TILLS,), start_from={"tills": {"at": {"n": 1}}}),
        Job("sum", "pricing", inlets=("shop.a",), outlets=("shop.b", "shop.c"), freshness=3600),
    ],
)
BY_SQL = CorrectBySql("shop.a", "DELETE FROM {target:shop.a} WHERE id = 367", {"shop.b": 3, "shop.c": None})
BY_FILE = ReplaceByFile("shop.a", "s3://in/1.csv", "csv", ("id", "name"), {"header": True, "delimiter": ";"})
SPEC = EpochSpec(
    job="load",
    topology="shopping",
    barrier_id=7,
    revision=2,
    attempt_id=12,
    incarnation="i1",
    timestamp=DAY,
    previous_timestamp=None,
    catalog="lake",
    inputs={"shop.a": 4711, "shop.b": None},
    previous={"shop.a": None},
    bases={"shop.c": 1},
    externals={"tills": TILLS},
    cuts={"tills": CUT},
    closing_uri="file:///lake/_barrier/closed.json",
    seed=17,
    nonce=NONCE,
    sql="SELECT 1",
    corrections=(BY_SQL, BY_FILE, ReuseRows("shop.b", None, 8)),
    secrets={"tills": {"password": "geheim ß"}},
    deltas={
        "shop.a": TableDelta(
            {"current-schema-id": 0, "schemas": [{"schema-id": 0, "fields": []}], "snapshots": []},
            (
                ChangedFiles(
                    4710,
                    4711,
                    (ChangedFile("s3://lake/1.parquet", "PARQUET", -1, False),),
                    (ChangedFile("s3://lake/2.parquet", "PARQUET", 1, True),),
                    added_have_deletes=False,
                ),
            ),
            bytes=4096,
        )
    },
    conf={"spark.sql.adaptive.enabled": "false"},
    large=("shop.b",),
)
RECORD = ClosingRecord(
    12, {"shop.a": StagedTable("shop.a", 4711), "shop.b": StagedTable("shop.b", None, unchanged=True)}
)
ORDER = Order(
    "lake",
    (Extract("shop.a", None, 8, Rows.CHANGES, False, ("id",)), Extract("shop.b", 1, None, Rows.TABLE, True, (), True)),
    "file:///lake/_barrier/1",
    NONCE,
)
SINK = SinkDeclaration("prices", "shopping", "files", {"shop.a": "a"}, {"keys": {"a": ["id"]}}, Rows.APPENDS)
SEGMENT = Segment(
    26_396_936,
    26_398_000,
    17,
    20,
    "7713696268387874154.1",
    "192C8F0/1764449247665772/734",
    {"public.orders": "`id` INT"},
    (ChangeFile("public.orders", "s3://lake/1.parquet", 3, 4096, "`id` INT", 18),),
)
CONDITIONS = (
    Condition("PROCESSED", timestamp=DAY, tables=("shop.a",), or_lacking=("load", "shopping"), lacking_after=DAY),
    Condition("COMMIT", barrier_id=7, line=2),
    Delivered("prices", timestamp=DAY),
    Delivered("prices", 7),
    Room(4),
    AttemptEnd(12, "the attempt to end"),
    RevisionEnd(2),
    DelivererEnd("prices", "shopping/manual__1/deliver"),
    Unseen("a file to land"),
    CutMade("prices", 7),
)


def sorted_json(data: Any) -> str:
    return json.dumps(data, sort_keys=True)


#: Name -> a value, its text, and the value that the text is read as.
FORMS: dict[str, tuple[Any, Callable[[], str], Callable[[str], Any]]] = {
    "topology": (TOPOLOGY, lambda: sorted_json(encode(TOPOLOGY)), lambda t: decode(Topology, json.loads(t))),
    "run": (RUN, lambda: sorted_json(encode(RUN)), lambda t: decode(RunRef, json.loads(t))),
    "sink": (SINK, lambda: sorted_json(encode(SINK)), lambda t: decode(SinkDeclaration, json.loads(t))),
    "entry": (ENTRY, ENTRY.dumps, JournalEntry.loads),
    "entry of maintenance, trimmed": (MAINTENANCE, MAINTENANCE.dumps, JournalEntry.loads),
}
for name, value in {
    "head": JournalHead("i1", 7, 2),
    "trimmed": TrimmedEntries((MAINTENANCE, ENTRY), {"shop.a": 1, "shop.b": None}),
    "revision": RevisionEntry(REVISION, "i1", 1, {"shop.a": 1, "shop.b": None}, (ENTRY, MAINTENANCE), (ENTRY,)),
    "revision, young": RevisionEntry(replace(REVISION, committing_at=None, corrections=()), "i1", 0, {}, (ENTRY,), ()),
}.items():
    FORMS[name] = (value, value.dumps, type(value).loads)
FORMS["spec"] = (SPEC, lambda: SPEC.dumps(KEY), lambda t: EpochSpec.loads(t, digest_of(t), KEY))
BARE = replace(SPEC, secrets={}, corrections=(), sql=None, previous_timestamp=DAY)
FORMS["spec without secrets"] = (BARE, BARE.dumps, EpochSpec.loads)
FORMS["closing record"] = (
    RECORD,
    lambda: RECORD.dumps(NONCE),
    lambda t: ClosingRecord.loads(t, 12, NONCE, "record"),
)
FORMS["segment"] = (
    SEGMENT,
    lambda: sorted_json(encode(SEGMENT)),
    lambda t: decode(Segment, json.loads(t)),
)
FORMS["order"] = (ORDER, ORDER.dumps, lambda t: Order.loads(t, digest_of(t)))
for number, following in enumerate((Following("file:///lake/spec.json", "d2"), Following())):
    FORMS[f"following {number}"] = (
        following,
        lambda following=following: following.dumps(NONCE),
        lambda t: Following.loads(t, NONCE, "file"),
    )
for correction in (BY_SQL, BY_FILE, ReuseRows("shop.b", None, 8)):
    FORMS[f"correction {correction.kind}"] = (
        correction,
        lambda correction=correction: sorted_json(encode(correction)),
        lambda t: decode(Correction, json.loads(t)),
    )
for number, condition in enumerate(CONDITIONS):
    FORMS[f"condition {number}"] = (
        condition,
        lambda condition=condition: sorted_json(encode(condition)),
        lambda t: decode(AnyCondition, json.loads(t)),
    )
