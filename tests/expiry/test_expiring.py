"""What an expiry lets go of, and what it must not, on real tables. Spark's part is in tests/spark/test_expiring.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_barrier.coordinator import committing
from airflow_barrier.coordinator.aborting import abort_barrier
from airflow_barrier.coordinator.expiring import expire, plan_expiry
from airflow_barrier.coordinator.leaving import leave
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.deliveries import Counts, Position, SinkDeclaration
from airflow_barrier.protocol.errors import ExpiredBarrierError, ExpiryError
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level, Resolution
from airflow_barrier.protocol.names import parse_tag
from airflow_barrier.protocol.retention import Retention
from airflow_barrier.protocol.tags import TagPolicy
from airflow_barrier.protocol.topology import Fragment
from airflow_barrier.tables._local_files import local_path
from tests.expiry.taking import Takes
from tests.support.deployments import settings_on
from tests.support.shop import AMOUNT, COLUMNS, JOBS, PRICE, SHOPPING, Shop, make_shop

ROWS = [{"amount": 1, "price": 1}]


@pytest.fixture
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """Six barriers, COMMIT, of which all have their tags; before them each table has the empty root of its branches."""
    kind = getattr(request, "param", "sqlite")
    postgresql = request.getfixturevalue("postgresql") if "postgresql" in kind else None
    with settings_on(kind, tmp_path, postgresql) as settings:
        shop = make_shop(replace(settings, tag_policy="every=1"))
        for day in range(1, 7):
            barrier = shop.open(day)
            shop.process_all(barrier, ROWS)
            shop.commit(barrier)
        yield shop
        shop.deployment.close()


def tags(shop: Shop, table: str = AMOUNT) -> set[int]:
    """The barriers whose tag the table has."""
    refs = shop.deployment.tables.load(table).metadata.refs
    return {tag.barrier_id for name in refs if (tag := parse_tag(name))}


def snapshots(shop: Shop, table: str = AMOUNT) -> int:
    return len(shop.deployment.tables.load(table).metadata.snapshots)


def held(shop: Shop, at: int | None = None, level: Level = Level.REPEATABLE_READ) -> Resolution:
    return shop.deployment.meta.answers.resolve("shopping", level, at=at, hold=Hold("report", 600))


def total(shop: Shop, answer: Resolution) -> set[int]:
    """What each table says, which is how many barriers are in it."""
    return {shop.total(table, resolved.snapshot_id) for table, resolved in answer.tables.items()}


def readable(shop: Shop) -> list[int]:
    return [barrier.barrier_id for barrier in shop.deployment.meta.answers.readable("shopping")]


@pytest.mark.parametrize("shop", ["sqlite", "postgresql apart"], indirect=True)
def test_what_is_beyond_the_retention_goes_and_what_is_leased_stays(shop: Shop) -> None:
    answer = held(shop, at=2)
    done = expire(shop.deployment, "shopping", Retention(2), Takes(shop), actor="test")
    assert done.barriers == (1, 3, 4)
    assert {table: len(ids) for table, ids in done.snapshots.items()} == dict.fromkeys(COLUMNS, 4)
    assert str(done) == "3 barriers and 12 snapshots of 3 tables expired"
    assert readable(shop) == [2, 5, 6]
    for table in COLUMNS:
        assert tags(shop, table) == {2, 5, 6}
        assert snapshots(shop, table) == 3
    assert total(shop, answer) == {2}
    with pytest.raises(ExpiredBarrierError, match="2"):
        held(shop, at=3)


def test_a_plan_says_what_would_go_and_why_and_changes_nothing(shop: Shop) -> None:
    held(shop, at=2)
    plan = plan_expiry(shop.deployment, "shopping", Retention(2))
    assert plan.expiring == (1, 3, 4)
    assert plan.snapshots == 12
    assert [(v.barrier.barrier_id, v.keep, v.reason) for v in plan.barriers] == [
        (1, False, "beyond the newest 2 barriers, and nobody holds it"),
        (2, True, "leased by report"),
        (3, False, "beyond the newest 2 barriers, and nobody holds it"),
        (4, False, "beyond the newest 2 barriers, and nobody holds it"),
        (5, True, "among the newest 2"),
        (6, True, "among the newest 2"),
    ]
    assert [verdict.reason for verdict in plan.tables[AMOUNT]] == [
        "no ref needs it any more",
        "no ref needs it any more",
        "tag barrier_shopping_b2_r0",
        "no ref needs it any more",
        "no ref needs it any more",
        "tag barrier_shopping_b5_r0",
        "tag barrier_shopping_b6_r0",
    ]
    assert readable(shop) == [1, 2, 3, 4, 5, 6]
    assert tags(shop) == {1, 2, 3, 4, 5, 6}
    takes = Takes(shop)
    done = expire(shop.deployment, "shopping", Retention(2), takes, actor="test")
    assert done.barriers == plan.expiring
    for table, verdicts in plan.tables.items():
        assert takes.told[table] == [verdict.snapshot_id for verdict in verdicts if not verdict.keep]


def test_a_lease_that_ended_lets_go_at_the_next_expiry(shop: Shop) -> None:
    lease = held(shop, at=2).lease
    assert lease is not None
    expire(shop.deployment, "shopping", Retention(1), Takes(shop), actor="test")
    assert readable(shop) == [2, 6]
    shop.deployment.meta.leases.release(lease.lease_id)
    assert expire(shop.deployment, "shopping", Retention(1), Takes(shop), actor="test").barriers == (2,)
    assert snapshots(shop) == 1
    # what expired with the first is forgotten in detail, the barriers themselves are not
    assert [len(shop.deployment.meta.attempts.of("shopping", number)) for number in (1, 2, 6)] == [0, 3, 3]
    assert shop.deployment.meta.barriers.get("shopping", 1).expired_at is not None
    nothing = expire(shop.deployment, "shopping", Retention(1), Takes(shop), actor="test")
    assert (nothing.barriers, nothing.snapshots) == ((), {})


def test_what_a_commit_or_an_abort_left_beside_the_warehouse_goes_with_the_details(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """The worker is lost."""

    def die(*_: object) -> None:
        raise Killed

    seventh = shop.open(7)
    shop.process_all(seventh, ROWS)
    with monkeypatch.context() as crash:
        crash.setattr(committing, "_tidy", die)
        with pytest.raises(Killed):
            shop.commit(seventh)
    shop.begin(shop.open(8), "load")
    abort_barrier(shop.deployment, "shopping", 8, reason="bad input", actor="test")
    assert folders(shop) == {"b7", "b8"}
    for day in (9, 10):
        barrier = shop.open(day)
        shop.process_all(barrier, ROWS)
        shop.commit(barrier)
    for _ in range(2):  # details go one expiry later
        expire(shop.deployment, "shopping", Retention(1), Takes(shop), actor="test")
    assert folders(shop) == set()


def folders(shop: Shop) -> set[str]:
    """Of barriers, for the files of their attempts."""
    root = local_path(shop.deployment.tables.location("_barrier", "shopping"))
    return {path.name for path in root.iterdir() if path.name.startswith("b")}


def test_what_is_young_stays(shop: Shop) -> None:
    done = expire(shop.deployment, "shopping", Retention(1, timedelta(days=1)), Takes(shop), actor="test")
    assert done.barriers == ()
    assert snapshots(shop) == 6


def test_open_barriers_and_open_attempts_keep_what_they_stand_on(shop: Shop) -> None:
    seventh = shop.open(7)
    shop.process(seventh, "load", ROWS)
    writing = shop.begin(seventh, "amount")
    eighth = shop.open(8)
    reading = held(shop, level=Level.READ_UNCOMMITTED)
    expire(shop.deployment, "shopping", Retention(1), Takes(shop), actor="test")
    assert readable(shop) == [6]
    assert shop.total(SHOPPING, reading.tables[SHOPPING].snapshot_id) == 7
    shop.close(writing, shop.write(writing, ROWS))
    shop.process(seventh, "price", ROWS)
    shop.process_all(eighth, ROWS)
    shop.commit(eighth)
    assert set(shop.main_totals().values()) == {8}


def test_every_branch_keeps_its_steps_whoever_made_it(shop: Shop) -> None:
    table = shop.deployment.tables.load(AMOUNT)
    third = table.metadata.refs["barrier_shopping_b3_r0"].snapshot_id
    with table.manage_snapshots() as manage:
        manage.create_branch(third, "audit")
    for _ in range(2):
        arrow = table.scan(snapshot_id=third).to_arrow().slice(0, 1)
        shop.deployment.tables.load(AMOUNT).append(arrow, branch="audit")
    expire(shop.deployment, "shopping", Retention(1), Takes(shop), actor="test")
    refreshed = shop.deployment.tables.load(AMOUNT)
    assert shop.total(AMOUNT, refreshed.metadata.refs["audit"].snapshot_id) == 5
    assert third in {snapshot.snapshot_id for snapshot in refreshed.metadata.snapshots}
    assert snapshots(shop) == 4


def test_an_expiry_that_died_is_gone_on_with(shop: Shop) -> None:
    """Between its steps: nobody reads any more, but tags and data are there; then tags are gone, data is not."""
    meta = shop.deployment.meta
    assert meta.expiry.expire("shopping", [1, 2], "somebody who died") == [1, 2]
    plan = plan_expiry(shop.deployment, "shopping", Retention(4))
    assert (plan.expiring, plan.snapshots) == ((), 9)
    shop.deployment.tables.drop_tags([AMOUNT], ["barrier_shopping_b1_r0"])
    done = expire(shop.deployment, "shopping", Retention(4), Takes(shop), actor="test")
    assert done.barriers == (1, 2)
    assert meta.expiry.pending("shopping") == []
    assert tags(shop) == tags(shop, PRICE) == {3, 4, 5, 6}
    assert snapshots(shop) == snapshots(shop, PRICE) == 4


def test_what_is_leased_beyond_the_window_does_not_stretch_it(shop: Shop) -> None:
    """Also if the barriers between are not readable any more, since somebody began to expire them, and died."""
    held(shop, at=2)
    assert shop.deployment.meta.expiry.expire("shopping", [1, 3, 4], "somebody who died") == [1, 3, 4]
    expire(shop.deployment, "shopping", Retention(2), Takes(shop), actor="test")
    assert tags(shop) == {2, 5, 6}
    assert snapshots(shop) == snapshots(shop, PRICE) == 3


@pytest.mark.kills("undelivered-steps-stay")
def test_what_a_sink_lacks_stays_with_every_step_since(shop: Shop) -> None:
    deliveries = shop.deployment.meta.deliveries
    deliveries.register("shopping", SinkDeclaration("prices", "shopping_dag", "files", {PRICE: "prices"}), "test")
    at = {"counts": Counts(), "seconds": 1.0, "actor": "test"}
    deliveries.delivered("shopping", "prices", Position(3, 0), **at)
    held(shop, at=4)
    plan = plan_expiry(shop.deployment, "shopping", Retention(1))
    assert [(v.barrier.barrier_id, v.keep, v.reason) for v in plan.barriers] == [
        (1, False, "beyond the newest barrier, and nobody holds it"),
        (2, False, "beyond the newest barrier, and nobody holds it"),
        (3, True, "sink prices is at b3.r0"),
        (4, True, "sink prices is at b3.r0"),
        (5, True, "sink prices is at b3.r0"),
        (6, True, "among the newest 1"),
    ]
    done = expire(shop.deployment, "shopping", Retention(1), Takes(shop), actor="test")
    assert done.barriers == plan.expiring == (1, 2)
    assert readable(shop) == [3, 4, 5, 6]
    third = shop.deployment.tables.load(PRICE).metadata.refs["barrier_shopping_b3_r0"].snapshot_id
    assert shop.deployment.tables.has_steps_since(PRICE, third)
    deliveries.delivered("shopping", "prices", Position(6, 0), **at)
    assert expire(shop.deployment, "shopping", Retention(1), Takes(shop), actor="test").barriers == (3, 5)


def test_a_table_that_left_loses_our_tags_and_nothing_else(shop: Shop) -> None:
    meta = shop.deployment.meta
    fragment = Fragment("shopping", "shopping_dag", JOBS[:2])
    leave(shop.deployment, "shopping", "shopping_dag", "price", reason="another team", actor="test")
    for day in (7, 8):
        barrier = shop.open(day, fragment)
        for job in ("load", "amount"):
            barrier = shop.process(barrier, job, ROWS)
        shop.commit(barrier)
    assert PRICE not in meta.topologies.get("shopping").tables
    expire(shop.deployment, "shopping", Retention(2), Takes(shop), actor="test")
    assert tags(shop, PRICE) == set()
    assert snapshots(shop, PRICE) == 7
    assert snapshots(shop, AMOUNT) == 2


def test_a_table_that_is_gone_does_not_hold_up_the_others(shop: Shop) -> None:
    leave(shop.deployment, "shopping", "shopping_dag", "price", reason="dropped", actor="test")
    barrier = shop.open(7, Fragment("shopping", "shopping_dag", JOBS[:2]))
    for job in ("load", "amount"):
        barrier = shop.process(barrier, job, ROWS)
    shop.commit(barrier)
    shop.deployment.tables.catalog.drop_table(PRICE)
    expire(shop.deployment, "shopping", Retention(1), Takes(shop), actor="test")
    assert readable(shop) == [7]
    assert snapshots(shop, AMOUNT) == snapshots(shop, SHOPPING) == 1


def test_one_table_that_fails_keeps_no_other_from_it(shop: Shop) -> None:
    takes = Takes(shop)

    def take_out(table: str, snapshot_ids: Sequence[int]) -> str:
        if table == AMOUNT:
            raise ExpiryError(f"expiry of {table}: out of memory")
        return takes(table, snapshot_ids)

    with pytest.raises(ExpiryError, match=f"found that 1 failed: expiry of {AMOUNT}: out of memory. All else is done"):
        expire(shop.deployment, "shopping", Retention(1), take_out, actor="test")
    assert readable(shop) == [6]
    assert (snapshots(shop, AMOUNT), snapshots(shop, PRICE), snapshots(shop, SHOPPING)) == (7, 1, 1)
    expire(shop.deployment, "shopping", Retention(1), takes, actor="test")
    assert snapshots(shop, AMOUNT) == 1


def test_a_table_that_is_none_any_more_keeps_no_other_from_it(shop: Shop) -> None:
    """It was dropped; then format version 1 took its place, whose tags we do not drop; then it has left."""
    catalog = shop.deployment.tables.catalog
    catalog.drop_table(PRICE)
    assert expires_but_price(shop, Retention(3), "found no such row") == [4, 5, 6]
    catalog.create_table(PRICE, pa.schema([("price", pa.int64())]), properties={"format-version": "1"})
    assert expires_but_price(shop, Retention(2), "found 1; set the table property") == [5, 6]
    being_expired = shop.deployment.meta.expiry.pending("shopping")
    assert [barrier.barrier_id for barrier in being_expired] == [4]
    shop.deployment.meta.topologies.leave("shopping", "shopping_dag", "price", "a view now", "test")
    assert expire(shop.deployment, "shopping", Retention(1), Takes(shop), actor="test").barriers == (4, 5)
    assert snapshots(shop, AMOUNT) == 1


def expires_but_price(shop: Shop, retention: Retention, found: str) -> list[int]:
    """What can be read afterwards, of as many snapshots in the other tables."""
    plan = plan_expiry(shop.deployment, "shopping", retention)
    assert len(plan.failed) == 1
    assert PRICE in plan.failed[0]
    assert found in plan.failed[0]
    with pytest.raises(ExpiryError, match=f"found that 1 failed: .*{PRICE}.*{found}.* All else is done"):
        expire(shop.deployment, "shopping", retention, Takes(shop), actor="test")
    assert snapshots(shop, AMOUNT) == snapshots(shop, SHOPPING) == retention.barriers
    return readable(shop)


def test_the_tag_policy_thins_and_the_expiry_takes_the_data(shop: Shop) -> None:
    shop.deployment = replace(shop.deployment, tag_policy=TagPolicy(newest=2))
    for day in (7, 8):
        barrier = shop.open(day)
        shop.process_all(barrier, ROWS)
        shop.commit(barrier)
    assert snapshots(shop) == 9
    expire(shop.deployment, "shopping", Retention(100), Takes(shop), actor="test")
    kept = readable(shop)
    assert tags(shop) == set(kept)
    assert kept[-2:] == [7, 8]


def test_it_is_said_where_the_tag_policy_takes_what_the_retention_would_keep(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    week = timedelta(days=7)
    for policy, retention, short in (
        ("every=1", Retention(100, week), False),
        ("newest=6", Retention(6), False),
        ("newest=5", Retention(6), True),
        ("newest=5", Retention(5), False),
        ("newest=5", Retention(1, week), True),
        ("newest=31", Retention(1, week), False),
        ("every=2", Retention(1), False),
        ("every=2", Retention(2), True),
        ("every=2", Retention(1, week), True),
    ):
        shop.deployment = replace(shop.deployment, tag_policy=TagPolicy.parse(policy))
        said = plan_expiry(shop.deployment, "shopping", retention).cut_short or ""
        found = f"expected to keep {retention}, found that the connection's tag policy ({policy}) lets some of these go"
        assert said.startswith(found) if short else not said, (policy, retention)
    expire(shop.deployment, "shopping", Retention(2), Takes(shop), actor="test")
    assert "found that the connection's tag policy (every=2)" in caplog.text


@pytest.mark.kills("held-baseline-stays")
@pytest.mark.parametrize("joins_later", [False, True])
def test_what_a_table_held_when_it_joined_stays_while_somebody_reads_that(tmp_path: Path, joins_later: bool) -> None:
    """Before its first barrier is COMMIT. Nothing but `main` names it, and a publish moves `main` on."""
    shop = make_shop(Settings.embedded(str(tmp_path), tag_policy="every=1"))
    shop.deployment.tables.load(PRICE).append(pa.table({"price": [500]}))
    jobs = (*JOBS[:2], replace(JOBS[2], start_from={SHOPPING: "latest"}))
    fragment = Fragment("shopping", "shopping_dag", jobs)
    if joins_later:
        before = shop.open(1, Fragment("shopping", "shopping_dag", JOBS[:2]))
        for job in ("load", "amount"):
            shop.process(before, job, ROWS)
        shop.commit(before)
    barrier = shop.open(2, fragment)
    answer = held(shop, level=Level.READ_UNCOMMITTED)
    shop.process_all(barrier, ROWS)
    shop.commit(barrier)
    expire(shop.deployment, "shopping", Retention(1), Takes(shop), actor="test")
    assert shop.total(PRICE, answer.tables[PRICE].snapshot_id) == 500
    assert answer.lease is not None
    shop.deployment.meta.leases.release(answer.lease.lease_id)
    held(shop)
    expire(shop.deployment, "shopping", Retention(1), Takes(shop), actor="test")
    assert snapshots(shop, PRICE) == 1
    shop.deployment.close()
