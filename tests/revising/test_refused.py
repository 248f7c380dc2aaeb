"""What is refused before anything is computed, saying what would work."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import StringType
from sqlalchemy import text

from airflow_barrier.coordinator.journal import read_head, write_head
from airflow_barrier.coordinator.revisions.begin import plan_revision
from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.coordinator.revisions.publish import Swapped
from airflow_barrier.coordinator.revisions.window import day_notes
from airflow_barrier.protocol.codec import encode
from airflow_barrier.protocol.errors import LostStateError, RevisionRefusedError, SchemaChangedError, TopologyError
from airflow_barrier.protocol.journal import JournalHead
from airflow_barrier.protocol.records import RunRef
from airflow_barrier.protocol.revisions import RevisionMode, RevisionState, TableCorrection
from airflow_barrier.spark.corrections import ReplaceByFile
from tests.crash.shopping import FIRST_DAY
from tests.revising.world import RevisedShop


@pytest.fixture
def history(embedded: RevisedShop) -> RevisedShop:
    """Barriers 1 to 3 are COMMIT."""
    embedded.days(1, 3)
    return embedded


def refused(shop: RevisedShop, match: str, first: Any, last: Any = None, **wanted: Any) -> None:
    with pytest.raises(RevisionRefusedError, match=match):
        plan_revision(shop.deployment, Wanted(shop.shop.name, first, last, **wanted))
    assert shop.deployment.meta.revisions.newest(shop.shop.name, 1) == []


@pytest.mark.kills("range-in-history", "days-are-named")
def test_days_have_to_be_named_and_in_history(history: RevisedShop) -> None:
    covers = "expected days within its history, which is committed from barrier 1 of .* to barrier 3 .*, found"
    refused(history, f"{covers} 9 to .*choose days that it covers", 9)
    refused(history, f"{covers} 2050-01-01 to", date(2050, 1, 1))
    refused(history, "found none; say --from", None)
    refused(history, "found 2040-01-03 beside a number; name both the same way", date(2040, 1, 3), 3)
    refused(history, "expected a time with its zone", datetime(2040, 1, 3))  # noqa: DTZ001
    plan = plan_revision(history.deployment, Wanted(history.shop.name, FIRST_DAY + timedelta(hours=1)))
    assert [each.barrier_id for each in plan.window] == [1]


def test_what_is_too_long_is_counted_to_the_head(history: RevisedShop) -> None:
    history.day(4, ["open"])
    refused(
        history,
        r"expected to replay at most 2 barriers \(max_replay_barriers\), found 4 from its first one",
        1,
        max_replay_barriers=2,
    )
    refused(history, r"from barrier 2 .*, found 3 from", FIRST_DAY + timedelta(hours=25), max_replay_barriers=2)
    whole = Wanted(history.shop.name, None, mode=RevisionMode.FULL, max_replay_barriers=4)
    plan = plan_revision(history.deployment, whole)
    assert [each.barrier_id for each in plan.window] == [1]
    assert [each.barrier_id for each in plan.barriers] == [1, 2, 3, 4]


@pytest.mark.kills("something-to-correct")
def test_there_has_to_be_something_to_correct(embedded: RevisedShop) -> None:
    embedded.day(1, ["open"])
    refused(embedded, "expected a barrier that is COMMIT, found none.* there is nothing to correct yet", 1)


@pytest.mark.kills("written-table-is-corrected", "corrections-are-replayed")
def test_corrections_are_of_tables_and_barriers_that_are_replayed(history: RevisedShop) -> None:
    refused(history, "found shop.nothing; correct the name", 2, corrections=(TableCorrection(2, "shop.nothing", {}),))
    refused(history, "found one at barrier 1", 2, corrections=(TableCorrection(1, "shop.shopping", {}),))


@pytest.mark.kills("expired-is-not-built-on", "expired-is-not-revised")
def test_what_has_expired_is_neither_revised_nor_built_on(history: RevisedShop) -> None:
    history.deployment.meta.expiry.expire(history.shop.name, [1], "test")
    refused(history, r"barrier 1 .* has expired; begin with barrier 3", 1)
    refused(
        history, "expected the barrier before it, barrier 1 .*, to build on.* has expired; begin one barrier later", 2
    )
    assert history.begin(2, changed=["price"], mode=RevisionMode.FULL).predecessor == 1


@pytest.mark.kills("input-is-there")
def test_input_has_to_be_there(history: RevisedShop) -> None:
    pq.write_table(pa.table({"id": ["x"]}), history.shop.landing / "date=2040-01-03" / "part.parquet")
    refused(history, "expected its source purchases to still hold the epoch of barrier 2", 2)
    reused = (history.shop.table("shopping"), history.shop.table("receipts"))
    plan = plan_revision(history.deployment, Wanted(history.shop.name, 2, reused=reused))
    assert ("load", "reused") in [(each.job, each.kind) for each in plan.inputs]


@pytest.mark.kills("replay-catches-up")
def test_replay_has_to_catch_up(embedded: RevisedShop) -> None:
    embedded.days(1, 3)
    slow = "UPDATE barrier_barrier SET opened_at = '2000-01-01 00:00:00.000000' WHERE barrier_id > 0"
    embedded.deployment.meta._db.write(lambda connection: connection.execute(text(slow)))
    refused(embedded, "expected to replay barriers faster than they come", 1)
    assert plan_revision(embedded.deployment, Wanted(embedded.shop.name, 1, accept_pause=True)).notes


@pytest.mark.kills("lead-before-deciding", "journal-before-publish")
def test_a_metaservice_that_has_lost_a_revision_decides_nothing(history: RevisedShop) -> None:
    deployment, name = history.deployment, history.shop.name
    revision = history.begin(2)
    history.replay_all(revision)
    head = read_head(deployment, name)
    assert head is not None
    for other, match in (
        (JournalHead(head.incarnation, 3, 1), "expected a MetaService that knows revision 1"),
        (JournalHead("another", 3), "expected the MetaService that leads it, incarnation another"),
    ):
        write_head(deployment, name, other)
        with pytest.raises(LostStateError, match=match):
            history.publish(revision)
        assert deployment.meta.revisions.get(name, 1).state is RevisionState.STAGING
    write_head(deployment, name, head)
    history.publish(revision)
    assert read_head(deployment, name) == JournalHead(head.incarnation, 3, 1)
    entry = deployment.tables.read_text(deployment.tables.location("_barrier", name, "journal", "r1.json"))
    assert '"revision": 1' in entry


def by_file(barrier_id: int, table: str) -> TableCorrection:
    return TableCorrection(barrier_id, table, encode(ReplaceByFile(table, "s3://mended/day.parquet")))


def test_a_day_that_is_a_runs_and_not_its_datas(embedded: RevisedShop) -> None:
    """Here runs have no data interval, as those of ``@daily`` in Airflow 3: their `ds` is the end of their data."""
    embedded.days(1, 2)
    day = FIRST_DAY.date()
    run = day + timedelta(days=1)
    plan = plan_revision(embedded.deployment, Wanted(embedded.shop.name, day))
    assert plan.notes == (f"a day is one of data: {day} was read by the run of {run}",)
    (note,) = plan_revision(embedded.deployment, Wanted(embedded.shop.name, run)).notes
    assert note.startswith(f"a day is one of data: {run} was read by the run of {run + timedelta(days=1)}. The run of")
    assert note.endswith(f"The run of {run} (its ds) opened {embedded.barrier(1)}: if you mean that one, say --from 1")
    # where runs have an interval, their `ds` is the day of their data
    over = replace(embedded.barrier(1), run=RunRef("dag", "run", "scheduled", FIRST_DAY))
    assert day_notes(embedded.deployment.meta, Wanted(embedded.shop.name, day), [over]) == ()
    last = run + timedelta(days=1)
    refused(embedded, rf"a day is one of data, .* The run of {last} \(its ds\) opened barrier 2 .*, say --from 2", last)


def test_days_name_the_barriers_whose_epochs_they_overlap(embedded: RevisedShop) -> None:
    """A barrier's epoch ends with its timestamp, which is the midnight after the day that landed."""
    embedded.days(1, 3)

    def window(first: Any, last: Any = None) -> list[int]:
        plan = plan_revision(embedded.deployment, Wanted(embedded.shop.name, first, last))
        return [barrier.barrier_id for barrier in plan.window]

    day = FIRST_DAY.date()
    assert window(day) == window(1) == [1]
    assert window(day + timedelta(days=1)) == [2]
    assert window(day, day + timedelta(days=1)) == [1, 2]
    noon = FIRST_DAY + timedelta(days=1, hours=12)
    assert window(noon, noon) == [2]


def test_a_table_that_nobody_writes_and_a_job_that_is_not_there(embedded: RevisedShop) -> None:
    embedded.days(1, 1)
    nobody = by_file(1, "shop.nobody")
    refused(embedded, "expected a table that one of its jobs writes.*found shop.nobody", 1, corrections=[nobody])
    with pytest.raises(TopologyError, match="nobody"):
        embedded.begin(1, changed=["nobody"])


@pytest.mark.kills("gone-is-not-empty")
def test_input_that_is_gone_unless_what_came_of_it_is_reused(embedded: RevisedShop) -> None:
    embedded.days(1, 2)
    for file in embedded.shop.landing.rglob("*.parquet"):
        file.unlink()
    refused(embedded, r"expected its source purchases to still hold .* --reuse shop.shopping", 1)
    outlets = [embedded.shop.table("shopping"), embedded.shop.table("receipts")]
    plan = plan_revision(embedded.deployment, Wanted(embedded.shop.name, 1, changed=["load", "price"], reused=outlets))
    assert [(each.job, each.kind) for each in plan.inputs if each.job == "load"] == [("load", "reused")]


@pytest.mark.kills("source-is-still-held")
def test_a_table_outside_that_has_expired_what_an_epoch_read(embedded: RevisedShop) -> None:
    embedded.days(1, 1)
    outside = embedded.deployment.tables.load(embedded.shop.outside)
    old = [snapshot.snapshot_id for snapshot in outside.snapshots()]
    for day in (2, 3, 4):
        outside.append(pa.table({"rate": [day]}))
        embedded.day(day)
    outside.refresh().maintenance.expire_snapshots().by_ids(old).commit()
    refused(embedded, r"its source rates to still hold the epoch of barrier 1.* is gone: it was expired", 1)


def test_corrections_that_reading_the_source_again_would_undo_are_named(embedded: RevisedShop) -> None:
    embedded.days(1, 2)
    revision = embedded.begin(2, corrections=[by_file(2, "shop.amounts")])
    embedded.replay_all(revision)
    assert isinstance(embedded.publish(revision), Swapped)

    def notes(**wanted: Any) -> tuple[str, ...]:
        return plan_revision(embedded.deployment, Wanted(embedded.shop.name, 1, **wanted)).notes

    (note,) = notes(changed=["amount"])
    assert note.startswith(
        "the correction of shop.amounts at barrier 2 by revision 1 of shop is lost, since job amount"
    )
    assert notes(changed=["price"]) == notes(changed=["amount"], reused=["shop.amounts"]) == ()
    again = embedded.begin(1, changed=["amount"])
    embedded.replay_all(again)
    embedded.publish(again)
    assert notes(changed=["amount"]) == ()  # it is gone


def test_a_column_that_was_dropped_since(embedded: RevisedShop) -> None:
    embedded.days(1, 2)
    table = embedded.deployment.tables.load(embedded.shop.table("prices"))
    with table.update_schema() as update:
        update.add_column("note", StringType())
    plan_revision(embedded.deployment, Wanted(embedded.shop.name, 2))  # one that may be NULL is no fault
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("price")
    with pytest.raises(SchemaChangedError, match=r"prices.*price.*new name"):
        plan_revision(embedded.deployment, Wanted(embedded.shop.name, 2))
