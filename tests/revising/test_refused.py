"""What is refused before anything is computed, saying what would work."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import text

from airflow_barrier.coordinator.journal import read_head, write_head
from airflow_barrier.coordinator.revisions.begin import plan_revision
from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.protocol.errors import LostStateError, RevisionRefusedError
from airflow_barrier.protocol.journal import JournalHead
from airflow_barrier.protocol.revisions import RevisionMode, RevisionState, TableCorrection
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
    refused(history, "expected days within its history", 9)
    refused(history, "expected days within its history", date(2041, 1, 1))
    refused(history, "found none; say --from", None)
    refused(history, "found 2040-01-03 beside a number", date(2040, 1, 3), 3)
    refused(history, "expected a time with its zone", datetime(2040, 1, 3))  # noqa: DTZ001
    plan = plan_revision(history.deployment, Wanted(history.shop.name, FIRST_DAY + timedelta(hours=1)))
    assert [each.barrier_id for each in plan.window] == [1]


def test_what_is_too_long_is_counted_to_the_head(history: RevisedShop) -> None:
    history.day(4, ["open"])
    refused(history, "expected to replay at most 2 barriers .*, found 4 from its first one", 1, max_replay_barriers=2)
    refused(history, r"from barrier 2 .*, found 3 from", FIRST_DAY + timedelta(hours=25), max_replay_barriers=2)
    whole = Wanted(history.shop.name, None, mode=RevisionMode.FULL, max_replay_barriers=4)
    plan = plan_revision(history.deployment, whole)
    assert [each.barrier_id for each in plan.window] == [1]
    assert [each.barrier_id for each in plan.barriers] == [1, 2, 3, 4]


@pytest.mark.kills("something-to-correct")
def test_there_has_to_be_something_to_correct(embedded: RevisedShop) -> None:
    embedded.day(1, ["open"])
    refused(embedded, "expected a barrier that is COMMIT, found none", 1)


@pytest.mark.kills("written-table-is-corrected", "corrections-are-replayed")
def test_corrections_are_of_tables_and_barriers_that_are_replayed(history: RevisedShop) -> None:
    refused(history, "found shop.nothing; correct the name", 2, corrections=(TableCorrection(2, "shop.nothing", {}),))
    refused(history, "found one at barrier 1", 2, corrections=(TableCorrection(1, "shop.shopping", {}),))


@pytest.mark.kills("expired-is-not-built-on", "expired-is-not-revised")
def test_what_has_expired_is_neither_revised_nor_built_on(history: RevisedShop) -> None:
    history.deployment.meta.expiry.expire(history.shop.name, [1], "test")
    refused(history, r"barrier 1 .* has expired; begin with barrier 3", 1)
    refused(history, "expected the barrier before it, barrier 1 .*, to build on", 2)
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
