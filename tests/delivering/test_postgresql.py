"""Barriers in a real PostgreSQL: each once, in order, all targets together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from airflow_barrier.coordinator.next import next_delivery
from airflow_barrier.coordinator.runs import Run
from airflow_barrier.coordinator.waiting import Wait
from airflow_barrier.protocol.deliveries import Counts, Position, Remedy, Rows
from airflow_barrier.protocol.errors import (
    LedgerError,
    RevisionRefusedError,
    RowRefusedError,
    SinkRefusedError,
    TargetChangedError,
)
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.sinks.ledger import LedgerRecord
from airflow_barrier.sinks.postgresql import PostgreSQLSink
from airflow_barrier.sinks.postgresql.channel import PostgreSQLChannel
from tests.delivering.feed import AMOUNT, PRICE, Feed, Reporting
from tests.delivering.pairs import STRANGER, by_stranger, make_pair
from tests.support.postgresql import PostgreSQL
from tests.support.scheduling import Scheduled
from tests.support.waiting import patience, wait_for

PAIR = PostgreSQLSink("reporting", name="pair")
TARGETS = {AMOUNT: "amount", PRICE: "price"}
DAYS = (
    {(1, 1): 10, (1, 2): 20, (2, 1): 30},
    {(1, 1): 11, (2, 1): 30, (3, 1): 40},
    {(1, 1): 11, (2, 1): 30, (3, 1): 40},
    {(4, 1): 50},
    {},
)


def say_at(reporting: Reporting, barrier_id: int, also: str = "") -> None:
    """Have the ledger say that this is what was delivered last."""
    at = f"targets = regexp_replace(targets::text, '\\[\\d+, 0\\]', '[{barrier_id}, 0]', 'g')::jsonb"
    reporting.run(f"UPDATE airflow_barrier_ledger SET barrier_id = {barrier_id}, {at}{also}")


def position(feed: Feed) -> Position | None:
    return feed.deployment.meta.deliveries.get("shopping", "pair").position


def test_the_first_delivery_is_whole_and_then_changes_follow(feed: Feed, reporting: Reporting) -> None:
    for number, state in enumerate(DAYS, start=1):
        barrier = feed.commit(state)
        (receipt,) = feed.deliver(PAIR, TARGETS, reporting.credentials())
        assert receipt.barrier.barrier_id == barrier.barrier_id == number
        assert reporting.rows("amount") == reporting.rows("price") == state
        assert position(feed) == Position(number, 0)
    second = feed.deployment.meta.deliveries.history("shopping", "pair")[-2]
    assert (second.inserted, second.updated, second.deleted) == (2, 2, 2)
    assert feed.deliver(PAIR, TARGETS, reporting.credentials()) == []


def test_what_was_missed_is_caught_up_in_order(feed: Feed, reporting: Reporting) -> None:
    feed.commit(DAYS[0])
    feed.deliver(PAIR, TARGETS, reporting.credentials())
    for state in DAYS[1:]:
        feed.commit(state)
    receipts = feed.deliver(PAIR, TARGETS, reporting.credentials())
    assert [receipt.barrier.barrier_id for receipt in receipts] == [2, 3, 4, 5]
    assert [receipt.counts[AMOUNT] for receipt in receipts] == [
        Counts(inserted=1, updated=1, deleted=1),
        Counts(),
        Counts(inserted=1, deleted=3),
        Counts(deleted=1),
    ]
    assert reporting.rows("amount") == reporting.rows("price") == {}


def test_what_was_missed_may_come_in_one_step(feed: Feed, reporting: Reporting) -> None:
    feed.commit(DAYS[0])
    feed.deliver(PAIR, TARGETS, reporting.credentials())
    for state in DAYS[1:4]:
        feed.commit(state)
    (receipt,) = feed.deliver(PAIR, TARGETS, reporting.credentials(), collapse=True)
    assert receipt.counts[PRICE] == Counts(inserted=1, deleted=3)
    assert reporting.rows("amount") == reporting.rows("price") == DAYS[3]
    newest = feed.deployment.meta.deliveries.history("shopping", "pair")[0]
    assert (newest.first_barrier, newest.barrier_id) == (2, 4)


@pytest.mark.kills("corrections-reach-sinks")
def test_a_revision_is_refused_that_a_sink_could_not_take(feed: Feed, reporting: Reporting) -> None:
    log = PostgreSQLSink("reporting", table="log")
    declared = log.declare(AMOUNT, Rows.APPENDS, "shopping_dag")
    for state in DAYS[:2]:
        feed.commit(state)
    meta = feed.deployment.meta
    meta.deliveries.register("shopping", declared, "test")
    meta.deliveries.delivered("shopping", "log", Position(1, 0), counts=Counts(), seconds=1.0, actor="test")
    with pytest.raises(RevisionRefusedError, match=r"found sink log of shopping: it gets what is .* received b1\.r0\."):
        feed.revise({1: {}, 2: {}})
    feed.revise({2: {}})  # which it has not received
    meta.deliveries.release("shopping", "log", "test", "keeps what it has")
    feed.revise({1: {}, 2: {}})


def test_an_appending_sink_waits_for_a_revision_that_began_before(feed: Feed, reporting: Reporting) -> None:
    """It would receive what the revision is to correct, and keep it: the revision is not published over that."""
    reporting.run("CREATE TABLE log (LIKE amount)")
    sink = PostgreSQLSink("reporting", name="log", table="log")
    feed.commit(DAYS[0])
    feed.deliver(sink, AMOUNT, reporting.credentials(), rows=Rows.APPENDS)
    wrong = feed.commit({**DAYS[0], (9, 9): 9})
    revision = feed.compute({2: {**DAYS[0], (9, 9): 10}})
    declared = sink.declare(AMOUNT, Rows.APPENDS, "shopping_dag")
    run = Run(wrong.run, wrong.timestamp, "test")
    step = next_delivery(feed.deployment, run, "shopping", declared, Scheduled(), request_key="task#1", actor="test")
    assert isinstance(step, Wait)
    assert step.reason == "sink log waits for revision 1 of shopping to be published or cancelled, since " + (
        "sink log of shopping cannot take corrections"
    )
    feed.deliver(sink, AMOUNT, reporting.credentials(), rows=Rows.APPENDS)  # as one that had begun before
    with pytest.raises(RevisionRefusedError, match=r"revision 1 of shopping: .* found sink log .*has received b2\.r0"):
        feed.publish(revision)
    feed.deployment.meta.deliveries.release("shopping", "log", "test", "keeps what it has")
    feed.publish(revision)


def test_a_correction_that_a_sink_lacks_is_said(feed: Feed, reporting: Reporting) -> None:
    for state in DAYS[:2]:
        feed.commit(state)
    feed.deliver(PAIR, TARGETS, reporting.credentials())
    lags = feed.deployment.meta.deliveries.lags
    assert lags("shopping")["pair"] == (0, None)
    published = feed.revise({1: {}, 2: {}})
    assert lags("shopping")["pair"] == (1, published.commit_at)
    feed.deliver(PAIR, TARGETS, reporting.credentials())
    assert lags("shopping")["pair"] == (0, None)


def test_what_a_revision_corrects_is_delivered_as_the_difference(feed: Feed, reporting: Reporting) -> None:
    for state in DAYS[:3]:
        feed.commit(state)
        feed.deliver(PAIR, TARGETS, reporting.credentials())
    number = feed.revise({2: {(1, 1): 12, (2, 1): 30}, 3: {(1, 1): 12, (2, 1): 30, (8, 8): 1}}).revision
    feed.commit(DAYS[3])
    receipts = feed.deliver(PAIR, TARGETS, reporting.credentials(), through=barrier_at(feed, 3))
    assert [(receipt.barrier.barrier_id, receipt.counts[PRICE]) for receipt in receipts] == [
        (3, Counts(inserted=1, updated=1, deleted=1))
    ]
    assert position(feed) == Position(3, number)
    assert reporting.rows("amount") == reporting.rows("price") == feed.states[3]
    feed.deliver(PAIR, TARGETS, reporting.credentials())
    assert reporting.rows("amount") == reporting.rows("price") == feed.states[4]


def barrier_at(feed: Feed, barrier_id: int) -> Barrier:
    return feed.deployment.meta.barriers.get("shopping", barrier_id)


def test_a_sink_that_is_behind_a_revision_gets_the_correction_first(feed: Feed, reporting: Reporting) -> None:
    feed.commit(DAYS[0])
    feed.deliver(PAIR, TARGETS, reporting.credentials())
    for state in DAYS[1:3]:
        feed.commit(state)
    feed.revise({1: {(9, 9): 9}, 2: {(9, 9): 9, (1, 1): 1}, 3: {}})
    receipts = feed.deliver(PAIR, TARGETS, reporting.credentials())
    assert [receipt.barrier.barrier_id for receipt in receipts] == [1, 2, 3]
    assert reporting.rows("amount") == reporting.rows("price") == {}


def test_a_sink_comes_back_with_one_table_more(feed: Feed, reporting: Reporting) -> None:
    """Its DAG left it out for a run, or a person released it: nothing is missing, and nothing comes twice."""
    meta = feed.deployment.meta.deliveries
    for state, tables in zip(DAYS, ([AMOUNT], [], [AMOUNT, PRICE], [PRICE], [AMOUNT, PRICE]), strict=True):
        feed.commit(state)
        if not tables:
            meta.release("shopping", "pair", "test", "left out")
            continue
        feed.deliver(PAIR, {table: TARGETS[table] for table in tables}, reporting.credentials())
        for table in tables:
            assert reporting.rows(TARGETS[table]) == state


@pytest.mark.parametrize("by", ["another schema's ledger", "a partition", "a renamed target"])
def test_a_target_is_known_by_more_than_its_name(feed: Feed, reporting: Reporting, by: str) -> None:
    """An appending sink would have its rows twice."""
    feed.commit(DAYS[0])
    if by == "a partition":
        reporting.run("CREATE TABLE log (LIKE amount) PARTITION BY LIST (value)")
        reporting.run("CREATE TABLE log_1 PARTITION OF log DEFAULT")
    else:
        reporting.run("CREATE TABLE log (LIKE amount)")
    sink = PostgreSQLSink("reporting", name="log", table="log")
    feed.deliver(sink, AMOUNT, reporting.credentials(), rows=Rows.APPENDS)
    if by == "a renamed target":
        reporting.run("ALTER TABLE log RENAME TO logged")
        renamed = PostgreSQLSink("reporting", name="log", table="logged")
        feed.commit({**DAYS[0], (9, 9): 9})
        feed.deliver(renamed, AMOUNT, reporting.credentials(), rows=Rows.APPENDS)
        assert len(reporting.run("SELECT 1 FROM logged")) == len(DAYS[0]) + 1
        return
    reporting.run("CREATE SCHEMA other")
    settings = {"ledger": "other.ledger"} if by != "a partition" else {"table": "log_1"}
    other = PostgreSQLSink("reporting", **{"name": "other", "table": "log", **settings})
    with pytest.raises(LedgerError, match=r"log of shopping delivers to public\.log by the ledger public\.airflow"):
        feed.deliver(other, AMOUNT, reporting.credentials(), rows=Rows.APPENDS)
    moved = PostgreSQLSink("reporting", name="log", table="log", ledger="other.ledger")
    feed.deployment.meta.deliveries.release("shopping", "log", "test", "declared with another ledger")
    with pytest.raises(LedgerError, match=r"or that ledger, and the sink goes on from there"):
        feed.deliver(moved, AMOUNT, reporting.credentials(), rows=Rows.APPENDS)


@pytest.mark.kills("targets-are-locked")
def test_of_two_sinks_that_open_for_one_target_at_once_one_sees_the_other(
    feed: Feed, reporting: Reporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporting.run("CREATE TABLE log (LIKE amount)")
    feed.commit(DAYS[0])
    looked, go_on, look = Event(), Event(), PostgreSQLChannel._look

    def slow(channel: PostgreSQLChannel, *arguments: Any, lock: bool = False) -> LedgerRecord:
        found = look(channel, *arguments, lock=lock)
        if lock and str(channel) == "sink one":
            looked.set()
            assert go_on.wait(patience())
        return found

    monkeypatch.setattr(PostgreSQLChannel, "_look", slow)

    def deliver(name: str) -> object:
        sink = PostgreSQLSink("reporting", name=name, table="log", ledger=f"ledger_of_{name}")
        return feed.deliver(sink, AMOUNT, reporting.credentials(), rows=Rows.APPENDS)

    waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(deliver, "one")
        try:
            assert looked.wait(patience())
            other = threads.submit(deliver, "other")
            wait_for("the other to wait for the first one", lambda: other.done() or reporting.run(waiting))
        finally:
            go_on.set()
        one.result(patience())
        with pytest.raises(LedgerError, match="found that sink one of shopping delivers to"):
            other.result(patience())
    assert reporting.rows("log") == DAYS[0]


@pytest.mark.kills("loaded-anew-into-nothing")
def test_an_appending_sink_is_loaded_anew_once_its_target_is_empty(feed: Feed, reporting: Reporting) -> None:
    reporting.run("CREATE TABLE log (LIKE amount)")
    sink = PostgreSQLSink("reporting", name="pair", table="log")
    for state in (DAYS[0], {**DAYS[0], (9, 9): 9}):
        feed.commit(state)
        feed.deliver(sink, AMOUNT, reporting.credentials(), rows=Rows.APPENDS)
    decide(feed, Remedy.REDELIVER)
    with pytest.raises(
        SinkRefusedError, match=r"expected an empty target public\.log, .* and the next try delivers its table"
    ):
        feed.deliver(sink, AMOUNT, reporting.credentials(), rows=Rows.APPENDS)
    reporting.run("TRUNCATE log")
    feed.deliver(sink, AMOUNT, reporting.credentials(), rows=Rows.APPENDS)
    assert reporting.rows("log") == feed.states[2]


@pytest.mark.kills("delivered-as-declared")
def test_another_table_takes_over_a_target_when_a_person_says_so(feed: Feed, reporting: Reporting) -> None:
    """Of the former table's rows those go that the new one does not have."""
    sink = PostgreSQLSink("reporting", name="pair", table="price")
    feed.commit(DAYS[0])
    feed.deliver(sink, PRICE, reporting.credentials())
    reporting.run("INSERT INTO price VALUES (99, 1, 1)")
    feed.commit(DAYS[1])
    with pytest.raises(LedgerError, match=r"found table shop\.amount instead of shop\.price; declare it as it was\."):
        feed.deliver(sink, AMOUNT, reporting.credentials())
    decide(feed, Remedy.REDELIVER)
    feed.deliver(sink, AMOUNT, reporting.credentials())
    assert reporting.rows("price") == {**DAYS[1], (99, 1): 1}


def test_rows_of_others_stay(feed: Feed, reporting: Reporting) -> None:
    reporting.run("INSERT INTO amount VALUES (99, 1, 1)")
    for state in (*DAYS, DAYS[0]):
        feed.commit(state)
        feed.deliver(PAIR, TARGETS, reporting.credentials())
        assert reporting.rows("amount") == {**state, (99, 1): 1}


def test_a_row_in_the_way_is_named(feed: Feed, reporting: Reporting) -> None:
    reporting.run("INSERT INTO price VALUES (1, 2, 5)")
    feed.commit(DAYS[0])
    with pytest.raises(RowRefusedError, match=r'public\.price .*\("userId", "itemId"\)=\(1, 2\) already exists'):
        feed.deliver(PAIR, TARGETS, reporting.credentials())
    assert reporting.rows("amount") == {}, "not even the other target"
    found = feed.deployment.meta.deliveries.get("shopping", "pair")
    assert (found.position, found.failures) == (None, 1)
    reporting.run("DELETE FROM price")
    feed.deliver(PAIR, TARGETS, reporting.credentials())
    assert reporting.rows("price") == DAYS[0]
    assert feed.deployment.meta.deliveries.get("shopping", "pair").failures == 0


def test_a_row_that_a_column_refuses_is_named_by_its_key(feed: Feed, reporting: Reporting) -> None:
    reporting.run("ALTER TABLE price ADD CHECK (value < 1000)")
    feed.commit(DAYS[0])
    feed.deliver(PAIR, TARGETS, reporting.credentials())
    feed.commit({**DAYS[0], (7, 8): 5000})
    with pytest.raises(RowRefusedError, match=r"in the row with userId=7, itemId=8\. Nothing of this barrier"):
        feed.deliver(PAIR, TARGETS, reporting.credentials())
    assert reporting.rows("amount") == DAYS[0]
    assert position(feed) == Position(1, 0)


@pytest.mark.kills("applied-as-staged")
@pytest.mark.parametrize(
    "theirs", ['DELETE FROM price WHERE "userId" = 1', 'UPDATE price SET "userId" = 77 WHERE "userId" = 1']
)
def test_rows_that_others_took_away_stop_a_delivery(feed: Feed, reporting: Reporting, theirs: str) -> None:
    feed.commit(DAYS[0])
    feed.deliver(PAIR, TARGETS, reporting.credentials())
    reporting.run(theirs)
    feed.commit(DAYS[1])
    with pytest.raises(TargetChangedError, match="for instance userId=1, itemId=2"):
        feed.deliver(PAIR, TARGETS, reporting.credentials())
    assert reporting.rows("amount") == DAYS[0]


@pytest.mark.kills("ledger-of-this-target")
def test_a_target_that_was_made_anew_is_told(feed: Feed, reporting: Reporting) -> None:
    feed.commit(DAYS[0])
    feed.deliver(PAIR, TARGETS, reporting.credentials())
    reporting.run("CREATE TABLE other (LIKE price INCLUDING ALL)")
    reporting.run("DROP TABLE price")
    reporting.run("ALTER TABLE other RENAME TO price")
    feed.commit(DAYS[1])
    with pytest.raises(LedgerError, match=r"target public\.price .* made anew or changed since \(oid \d+ instead of"):
        feed.deliver(PAIR, TARGETS, reporting.credentials())
    assert reporting.rows("amount") == DAYS[0]


@pytest.mark.kills("target-of-one-sink")
def test_a_target_is_fed_by_one_sink(feed: Feed, reporting: Reporting) -> None:
    feed.commit(DAYS[0])
    feed.deliver(PAIR, TARGETS, reporting.credentials())
    other = PostgreSQLSink("reporting", table="price")
    with pytest.raises(LedgerError, match=r"found that sink pair of shopping delivers to public\.price") as refused:
        feed.deliver(other, PRICE, reporting.credentials())
    reporting.run("TRUNCATE price")  # as the error has it done first
    reporting.run(str(refused.value).partition("forget it: ")[2])
    feed.deliver(other, PRICE, reporting.credentials())
    assert reporting.rows("price") == DAYS[0]


@pytest.mark.kills("ledger-not-behind")
def test_a_ledger_that_says_less_than_it_did_is_told(feed: Feed, reporting: Reporting) -> None:
    for state in DAYS[:2]:
        feed.commit(state)
        feed.deliver(PAIR, TARGETS, reporting.credentials())
    say_at(reporting, 1)
    feed.commit(DAYS[3])
    with pytest.raises(LedgerError, match=r"ledger says b2\.r0, which was delivered, found b1\.r0"):
        feed.deliver(PAIR, TARGETS, reporting.credentials())
    # and so do its rows: a backup has both
    reporting.run("DELETE FROM amount")
    reporting.run("DELETE FROM price")
    for target in ("amount", "price"):
        for (user, item), value in DAYS[0].items():
            reporting.run(f"INSERT INTO {target} VALUES (%s, %s, %s)", user, item, value)
    decide(feed, Remedy.ADOPT)
    receipts = feed.deliver(PAIR, TARGETS, reporting.credentials())
    assert [(each.barrier.barrier_id, each.told) for each in receipts] == [(1, True), (2, False), (3, False)]
    assert reporting.rows("amount") == reporting.rows("price") == DAYS[3]
    assert feed.deployment.meta.deliveries.get("shopping", "pair").remedy is None


def decide(feed: Feed, remedy: Remedy) -> None:
    feed.deployment.meta.deliveries.decide("shopping", "pair", remedy, "person", "restored")


@pytest.mark.parametrize(
    "theirs",
    [
        "TRUNCATE price",
        "UPDATE price SET value = value + 1",
        'DELETE FROM price WHERE "userId" = 1',
        "DROP TABLE airflow_barrier_ledger",
        "ledger at 1",
        "ledger at 9",
        "INSERT INTO price VALUES (4, 1, 7); INSERT INTO amount VALUES (4, 1, 7)",
    ],
)
def test_a_person_has_the_target_compared_with_the_tables(feed: Feed, reporting: Reporting, theirs: str) -> None:
    """Whatever happened to it; rows that were never delivered stay."""
    for state in DAYS[:2]:
        feed.commit(state)
        feed.deliver(PAIR, TARGETS, reporting.credentials())
    for target in ("amount", "price"):
        reporting.run(f"INSERT INTO {target} VALUES (99, 1, 1)")
    if theirs.startswith("ledger"):
        say_at(reporting, int(theirs[-1]), ", incarnation = 'another'")
    else:
        for statement in theirs.split(";"):
            reporting.run(statement)
    feed.commit(DAYS[3])
    decide(feed, Remedy.REDELIVER)
    feed.deliver(PAIR, TARGETS, reporting.credentials())
    beside = {} if theirs.startswith("TRUNCATE") else {(99, 1): 2 if "value + 1" in theirs else 1}
    assert reporting.rows("price") == {**DAYS[3], **beside}
    assert reporting.rows("amount") == {**DAYS[3], (99, 1): 1}
    feed.commit(DAYS[0])
    (receipt,) = feed.deliver(PAIR, TARGETS, reporting.credentials())
    assert receipt.counts[PRICE] == Counts(inserted=3, deleted=1)
    assert reporting.rows("price") == {**DAYS[0], **beside}


@pytest.mark.kills("ledger-not-ahead")
def test_a_ledger_that_is_ahead_is_told(feed: Feed, reporting: Reporting) -> None:
    feed.commit(DAYS[0])
    feed.deliver(PAIR, TARGETS, reporting.credentials())
    say_at(reporting, 9)
    with pytest.raises(LedgerError, match=r"found b9\.r0: the MetaService has lost barriers"):
        feed.deliver(PAIR, TARGETS, reporting.credentials())


@pytest.mark.kills("logged-as-the-ledger")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("DROP TABLE price", 'expected a table, found none; create it:\nCREATE TABLE "public"."price"'),
        ("ALTER TABLE price DROP COLUMN value", 'ADD COLUMN "value" bigint'),
        ("ALTER TABLE price ALTER value TYPE integer", "expected a column that holds every int64, such as bigint"),
        ("ALTER TABLE price DROP CONSTRAINT price_pkey", "expected a primary key"),
        ("ALTER TABLE price ADD note text NOT NULL", "may be NULL or have a default, found note"),
        ("ALTER TABLE price OWNER TO admin", "found none; grant SELECT, INSERT, UPDATE, DELETE"),
        ("ALTER TABLE price SET UNLOGGED", "found price unlogged; ALTER TABLE price SET LOGGED"),
        (
            'DROP TABLE price; CREATE TABLE price (LIKE amount INCLUDING ALL) PARTITION BY HASH ("userId"); '
            "CREATE UNLOGGED TABLE part PARTITION OF price FOR VALUES WITH (MODULUS 1, REMAINDER 0); "
            "GRANT ALL ON price TO barrier",
            "target public.price of shop.price: expected a table that outlives a crash of the server, found part",
        ),
        (
            "CREATE UNLOGGED TABLE airflow_barrier_ledger (); GRANT ALL ON airflow_barrier_ledger TO barrier",
            "ledger public.airflow_barrier_ledger: expected a table that outlives a crash",
        ),
        ("ALTER TABLE price ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY", "role that has BYPASSRLS"),
        (
            "DO $$ BEGIN EXECUTE 'REVOKE TEMP ON DATABASE ' || current_database() || ' FROM PUBLIC, barrier'; END $$",
            "grant TEMPORARY on the database",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_barrier(
    feed: Feed, reporting: Reporting, postgresql: PostgreSQL, change: str, said: str
) -> None:
    postgresql.run(change, database=reporting.url)
    feed.commit(DAYS[0])
    with pytest.raises(SinkRefusedError) as refused:
        feed.deliver(PAIR, TARGETS, reporting.credentials())
    assert said in str(refused.value)
    assert reporting.rows("amount") == {}


def test_a_login_that_may_make_no_ledger_says_how_its_owner_makes_it(
    feed: Feed, reporting: Reporting, postgresql: PostgreSQL
) -> None:
    feed.commit(DAYS[0])
    pair = by_stranger(make_pair(feed, reporting, "pair"), postgresql)
    with pytest.raises(SinkRefusedError, match=rf"{STRANGER} may keep the ledger public\.ledger_pair") as refused:
        pair.deliver(1)
    reporting.run(str(refused.value).partition(":\n")[2])
    assert pair.deliver(1) == [1]
    pair.check(1)
