"""What cannot be corrected as it is asked for is refused before anything is staged, with what would work."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import StringType

from airflow_barrier.coordinator.revisions.begin import plan_revision
from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.coordinator.revisions.publish import Swapped
from airflow_barrier.coordinator.revisions.window import day_notes
from airflow_barrier.protocol.codec import encode
from airflow_barrier.protocol.errors import RevisionRefusedError, SchemaChangedError, TopologyError
from airflow_barrier.protocol.records import RunRef
from airflow_barrier.protocol.revisions import TableCorrection
from airflow_barrier.protocol.topology import Job
from airflow_barrier.spark.corrections import ReplaceByFile
from tests.crash.shopping import FIRST_DAY
from tests.revising.world import RevisedShop


def refused(shop: RevisedShop, match: str, first: Any, last: Any = None, **wanted: Any) -> None:
    with pytest.raises(RevisionRefusedError, match=match):
        plan_revision(shop.deployment, Wanted(shop.shop.name, first, last, **wanted))
    assert shop.deployment.meta.revisions.newest(shop.shop.name, 1) == []


def by_file(barrier_id: int, table: str) -> TableCorrection:
    return TableCorrection(barrier_id, table, encode(ReplaceByFile(table, "s3://mended/day.parquet")))


def test_days_outside_of_history(embedded: RevisedShop) -> None:
    embedded.days(1, 2)
    refused(embedded, r"committed from barrier 1 of .* to barrier 2 .*, found 2050-01-01 to", date(2050, 1, 1))
    refused(embedded, "choose days that it covers", 7)
    refused(embedded, "name both the same way", 1, date(2040, 1, 2))
    refused(embedded, "with its zone", datetime(2040, 1, 2))  # noqa: DTZ001
    refused(embedded, "found none; say --from", None)


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


def test_nothing_is_committed_yet(embedded: RevisedShop) -> None:
    embedded.day(1, ["open"])
    refused(embedded, "there is nothing to correct yet", 1)


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


def test_longer_than_its_author_expects(embedded: RevisedShop) -> None:
    embedded.days(1, 3)
    refused(embedded, r"at most 2 barriers \(max_replay_barriers\), found 3", 1, max_replay_barriers=2)


def test_a_barrier_that_has_expired(embedded: RevisedShop) -> None:
    embedded.days(1, 4)
    assert embedded.deployment.meta.expiry.expire(embedded.shop.name, [1, 2], "test") == [1, 2]
    refused(embedded, r"barrier 2 of .* has expired; begin with barrier 4", 2)
    refused(embedded, r"the barrier before it, barrier 2 .* has expired; begin one barrier later", 3)


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
    outside = embedded.deployment.tables.load(embedded.shop.outside)
    embedded.days(1, 1)
    old = [snapshot.snapshot_id for snapshot in outside.refresh().snapshots()]
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


def test_a_second_one_while_one_is_under_way(embedded: RevisedShop) -> None:
    embedded.days(1, 2)
    first = embedded.begin(2)
    with pytest.raises(RevisionRefusedError, match=r"found revision 1 .*STAGING.*revision cancel shop"):
        embedded.begin(1)
    assert [each.revision for each in embedded.deployment.meta.revisions.newest("shop", 5)] == [first.revision]


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


def test_code_that_reads_by_now_what_was_not_there(embedded: RevisedShop) -> None:
    """Declared with the same name and other inlets since."""
    embedded.days(1, 2)
    meta, fragment = embedded.deployment.meta, embedded.shop.fragment
    jobs = [replace(job, inlets=("shop.shopping", "shop.new")) if job.name == "price" else job for job in fragment.jobs]
    jobs.append(Job("new", "shopping_dag", inlets=("shop.shopping",), outlets=("shop.new",)))
    meta.topologies.register("shop", "shopping_dag", jobs, "test")
    tables = embedded.deployment.tables
    tables.catalog.create_table("shop.new", tables.load("shop.prices").schema())
    with pytest.raises(RevisionRefusedError, match=r"price reads shop.new by now, which barrier 2 .* does not have"):
        embedded.begin(2, changed=["price"])
