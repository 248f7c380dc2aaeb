"""Files in an object store: what any sink does, as who reads manifests finds it, and what conditional puts answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from airflow_barrier.protocol.codec import decode, encode
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import Position, Remedy, Rows
from airflow_barrier.protocol.errors import (
    ConfigurationError,
    FencedDelivererError,
    LedgerError,
    SinkRefusedError,
    SinkUnavailableError,
)
from airflow_barrier.sinks import sink_of
from airflow_barrier.sinks.files import object_store
from tests.sinks.behaviour import (
    AMOUNTS,
    CHANGES,
    CORRECTION,
    PRICES,
    SCHEMAS,
    Batches,
    Behaviour,
    Places,
    Step,
    amount,
    catch_up,
    check,
    deliverer,
    delivery,
    expected,
    price,
)
from tests.sinks.objects import BUCKET, FILES, Front, Objects, front_of
from tests.support.cases import cases
from tests.support.drawing import drawn
from tests.support.object_store import ObjectStore
from tests.support.waiting import patience


@pytest.fixture
def store(s3: ObjectStore) -> ObjectStore:
    s3.make_bucket(BUCKET)  # once more does no harm
    return s3


@pytest.fixture
def place(store: ObjectStore) -> Objects:
    return Objects(store.endpoint, f"{uuid4()}/out")


@pytest.fixture
def front(store: ObjectStore) -> Iterator[Front]:
    with front_of(store.endpoint) as front:
        yield front


@pytest.fixture
def behind(front: Front) -> Callable[[], Objects]:
    """Places whose requests go through the front."""
    return lambda: Objects(front.address, f"{uuid4()}/out")


def deliver_steps(place: Objects, steps: Sequence[Step]) -> None:
    with place.channel(Rows.CHANGES) as channel:
        catch_up(channel, Rows.CHANGES, steps)


@pytest.mark.drawn("files in an object store")
@pytest.mark.touches(*FILES)
class TestObjects(Behaviour):
    files = FILES

    @pytest.fixture
    def places(self, store: ObjectStore) -> Places:
        return lambda: Objects(store.endpoint, f"{uuid4()}/out")


def test_manifests_say_all_that_a_reader_needs(place: Objects) -> None:
    deliver_steps(place, [*CHANGES, CORRECTION])
    paths, found = zip(*place.manifests(), strict=True)
    assert paths == tuple(f"_manifests/000000/{number:09}.json" for number in range(1, 7))
    assert [(each["says"], each["barrier_id"], each["revision"]) for each in found] == [
        ("opened", None, None),
        *(("delivered", step.position.barrier_id, step.position.revision) for step in (*CHANGES, CORRECTION)),
    ]
    assert [each["whole"] for each in found[1:]] == [["amounts", "prices"], [], [], [], []]
    assert {(each["rows"], each["topology"], each["sink"]) for each in found[1:]} == {("changes", "shopping", "out")}
    for each in found[1:]:
        assert {target: [file["name"][:10] for file in files] for target, files in each["files"].items()} == {
            target: [f"b{each['barrier_id']:08}."] for target in ("prices", "amounts")
        }
    assert found[2]["timestamp"] == "2017-01-04T00:00:00+00:00"


# --- what a store answers -------------------------------------------------------------------------


def test_a_store_that_ignores_conditions_is_refused(behind: Callable[[], Objects], front: Front) -> None:
    front.ignores_conditions = True
    place = behind()
    with place.channel(Rows.CHANGES) as channel:
        with pytest.raises(SinkRefusedError, match=r"\(If-None-Match\), found that s3://.*/out replaces it"):
            channel.validate(SCHEMAS)
        front.ignores_conditions = False
        channel.validate(SCHEMAS)
    assert place.paths() == []


def test_a_conflict_is_tried_again(
    behind: Callable[[], Objects], front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "_CONFLICT_SECONDS", 0)
    place = behind()
    with place.channel(Rows.CHANGES) as channel:
        channel.open(deliverer())
        front.conflicts = 3
        channel.deliver(delivery(CHANGES[0], Rows.CHANGES, None))
        assert front.conflicts == 0
        front.conflicts = 1000
        with pytest.raises(SinkUnavailableError, match="that it named a conflict with another request 20 times"):
            channel.deliver(delivery(CHANGES[1], Rows.CHANGES, CHANGES[0].position))
        front.conflicts = 0
    check(place, CHANGES[:1], Rows.CHANGES)
    deliver_steps(place, CHANGES)
    check(place, CHANGES, Rows.CHANGES)
    assert place.left_over() == []


@pytest.mark.every_landing
def test_each_reply_gets_lost(behind: Callable[[], Objects], front: Front) -> None:
    """Whether the store did what it was asked for is found out by asking the ledger."""
    deliver_steps(behind(), CHANGES[:2])
    changes = [*front.changes]
    with cases() as case:
        for number in drawn(range(len(changes)), "replies of an object store that are lost", lambda _: FILES):
            with case(f"lost is {number}, {changes[number]}"):
                place, front.lost = behind(), number
                front.changes.clear()
                with pytest.raises(SinkUnavailableError, match="expected the object store to answer"):
                    deliver_steps(place, CHANGES[:2])
                front.lost = None
                deliver_steps(place, CHANGES)
                check(place, CHANGES, Rows.CHANGES)
                assert place.left_over() == []


def test_a_commit_whose_reply_alone_is_lost_has_happened(behind: Callable[[], Objects], front: Front) -> None:
    """The client asks once more, finds the number taken, and by itself."""
    place = behind()
    with place.channel(Rows.CHANGES) as channel:
        channel.open(deliverer())
        front.loses = "000000002.json"
        channel.deliver(delivery(CHANGES[0], Rows.CHANGES, None))
        assert front.loses is None
        channel.deliver(delivery(CHANGES[1], Rows.CHANGES, CHANGES[0].position))
    check(place, CHANGES[:2], Rows.CHANGES)


def test_what_cannot_work_is_told_before_a_first_barrier(place: Objects) -> None:
    declared = place.sink.declare("shop.prices", Rows.TABLE, "dag")
    elsewhere = replace(place.sink, url="s3://no-such-bucket/out")
    said = r"in a bucket that exists, found .*NoSuchBucket"
    with elsewhere.connect(declared, place.credentials) as channel, pytest.raises(SinkRefusedError, match=said):
        channel.validate({})
    nowhere = replace(place.credentials, extra={"endpoint_url": "http://127.0.0.1:1", "region_name": "us-east-1"})
    said = "expected the object store to answer"
    with place.sink.connect(declared, nowhere) as channel, pytest.raises(SinkUnavailableError, match=said):
        channel.validate({})
    role = Credentials("aws", extra={"role_arn": "arn:aws:iam::1:role/x"})
    with pytest.raises(ConfigurationError, match=r"expected extras of .*, found role_arn; remove it"):
        place.sink.connect(declared, role).__enter__()


def test_a_sink_is_the_same_after_it_was_stored(place: Objects) -> None:
    declared = place.sink.declare("shop.prices", Rows.TABLE, "dag")
    again = sink_of(decode(type(declared), encode(declared)))
    assert (again.conn_type, again.location, again.conn_id) == ("aws", f"s3://{BUCKET}/{place.prefix}", "aws")
    assert replace(place.sink, url=f"s3a://{BUCKET}/{place.prefix}/").identity == place.sink.identity


# --- many deliverers, and a reader ----------------------------------------------------------------


@pytest.mark.kills("next-manifest-is-mine")
def test_of_two_who_deliver_the_same_one_does(place: Objects) -> None:
    deliver_steps(place, CHANGES[:1])
    after = CHANGES[0].position
    with place.channel(Rows.CHANGES) as first, place.channel(Rows.CHANGES) as second:
        assert first.open(deliverer()).position == second.open(deliverer()).position == after
        with pytest.raises(FencedDelivererError, match=r"expected deliverer 3 .* to be the newest, found"):
            first.deliver(delivery(CHANGES[1], Rows.CHANGES, after))
        second.deliver(delivery(CHANGES[1], Rows.CHANGES, after))
    deliver_steps(place, CHANGES)
    check(place, CHANGES, Rows.CHANGES)
    assert place.left_over() == []


class _DiedError(Exception):
    """As if the process had been killed."""


@dataclass(frozen=True)
class _Deadly(Batches):
    def __iter__(self) -> Iterator[pa.RecordBatch]:
        raise _DiedError


def test_who_follows_the_manifests_never_sees_half_a_barrier(behind: Callable[[], Objects]) -> None:
    """While three race for each barrier, and one of them dies between its two tables each other time."""
    place = behind()
    last = Position(9, 0)
    seen: list[Position] = []
    over = threading.Event()

    def step(barrier: int) -> Step:
        ids = range(barrier * 100, barrier * 100 + barrier)
        tables: dict[str, Sequence[Any]] = {PRICES: [price(id_, "x", id_) for id_ in ids]}
        return Step(Position(barrier, 0), {**tables, AMOUNTS: [amount(id_, id_) for id_ in ids]}, barrier == 1)

    def deliver_all(number: int) -> None:
        position, deadly = None, False
        while (position is None or position < last) and not over.is_set():
            with suppress(_DiedError, FencedDelivererError), place.channel(Rows.APPENDS) as channel:
                position = channel.open(deliverer()).position
                while position is None or position < last:
                    due = delivery(step(position.barrier_id + 1 if position else 1), Rows.APPENDS, position)
                    if deadly := number == 0 and not deadly:
                        due = replace(due, tables={**due.tables, AMOUNTS: _Deadly(SCHEMAS[AMOUNTS], ())})
                    channel.deliver(due)
                    position = due.position

    def follow() -> None:
        newest = "_manifests/"
        while (not seen or seen[-1] < last) and not over.is_set():
            for newest, manifest in place.manifests(newest):  # noqa: B007, B020
                if manifest["says"] == "delivered":
                    due = step(manifest["barrier_id"])
                    assert place.rows_of(manifest, "prices") == due.tables[PRICES]
                    assert place.rows_of(manifest, "amounts") == due.tables[AMOUNTS]
                    seen.append(due.position)

    with ThreadPoolExecutor(4) as pool:
        try:
            for done in [pool.submit(follow), *(pool.submit(deliver_all, number) for number in range(3))]:
                done.result(patience())
        finally:
            over.set()
    assert seen == [Position(barrier, 0) for barrier in range(1, last.barrier_id + 1)]
    with place.channel(Rows.APPENDS) as channel:
        assert channel.open(deliverer()).position == last
    assert place.left_over() == []


# --- the ledger -----------------------------------------------------------------------------------


@pytest.mark.kills("no-files-ahead-of-manifests")
@pytest.mark.parametrize("kept", [0, 2], ids=["all of them", "those since yesterday"])
def test_manifests_that_are_lost_are_told(place: Objects, kept: int) -> None:
    """No later barrier comes on top of what nobody knows of any more, and nothing is swept."""
    deliver_steps(place, CHANGES[:1])
    deliver_steps(place, CHANGES)
    lost = {path: place.get(path) for path, manifest in place.manifests() if manifest["number"] > kept}
    for path in lost:
        place.delete(path)
    files = place.paths()
    for remedy in (None, Remedy.ADOPT):
        with place.channel(Rows.CHANGES) as channel:
            newest = kept or "none"
            with pytest.raises(LedgerError, match=rf"\(its newest is {newest}\), found .*; put the manifests back"):
                channel.open(deliverer(), remedy)
    assert place.paths() == files
    for path, data in lost.items():
        place.put(path, data)
    deliver_steps(place, [*CHANGES, CORRECTION])
    check(place, [*CHANGES, CORRECTION], Rows.CHANGES)


def test_a_copy_is_told_and_a_person_says_that_it_goes_on(place: Objects) -> None:
    deliver_steps(place, CHANGES[:2])
    copy = replace(place, prefix=f"{uuid4()}/copy")
    for path in place.paths():
        copy.put(path, place.get(path))
    recovered = deliverer(incarnation="recovered")
    with copy.channel(Rows.CHANGES) as channel:
        with pytest.raises(
            LedgerError, match=r"in \(s3://.*/out\), found a copy of it \(s3://.*/copy\), .*up to b4\.r0"
        ):
            channel.open(deliverer())
        with pytest.raises(LedgerError, match=r"of another one \(first\), which delivered up to b4\.r0"):
            channel.open(recovered)
        assert channel.open(recovered, remedy=Remedy.ADOPT).position == CHANGES[1].position
        with pytest.raises(LedgerError):
            channel.open(deliverer("banking"), remedy=Remedy.ADOPT)
    with copy.channel(Rows.CHANGES) as channel:
        assert channel.open(recovered).position == CHANGES[1].position
    check(copy, CHANGES[:2], Rows.CHANGES)


def test_who_reads_a_sink_that_is_loaded_anew_begins_anew(place: Objects) -> None:
    deliver_steps(place, CHANGES)
    tables = {table: expected(CHANGES, Rows.CHANGES, table) for table in SCHEMAS}
    now = Step(CHANGES[-1].position, tables, whole=True)
    with place.channel(Rows.CHANGES) as channel:
        after = channel.open(deliverer(), remedy=Remedy.ADOPT).position
        former = {table: Batches(schema, []) for table, schema in SCHEMAS.items()}
        channel.deliver(replace(delivery(now, Rows.CHANGES, after), former=former))
    check(place, [now], Rows.CHANGES)
    deliver_steps(place, [*CHANGES, CORRECTION])
    check(place, [now, CORRECTION], Rows.CHANGES)
    assert place.left_over() == []


def test_manifests_go_on_in_the_next_folder(place: Objects) -> None:
    deliver_steps(place, CHANGES[:1])
    place.put("_manifests/000000/000000997.json", place.get("_manifests/000000/000000002.json"))
    deliver_steps(place, CHANGES[:3])
    deliver_steps(place, CHANGES)
    assert [path[11:] for path in place.paths("_manifests/000000/000000997.json") if path.startswith("_manif")] == [
        "000000/000000998.json",
        "000000/000000999.json",
        "000001/000001000.json",
        "000001/000001001.json",
        "000001/000001002.json",
    ]
    with place.channel(Rows.CHANGES) as channel:
        assert channel.open(deliverer()).position == CHANGES[-1].position
