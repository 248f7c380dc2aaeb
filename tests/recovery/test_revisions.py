"""A MetaService that was lost, or restored from an older backup, where history was corrected by revisions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_barrier.coordinator.aborting import abort_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.journal import check_lead, entry_uri, read_head, write_head, write_revision
from airflow_barrier.coordinator.recovering import recover
from airflow_barrier.coordinator.revisions.publish import Swapped, cancel_revision, publications_of
from airflow_barrier.protocol.errors import JournalError, LostStateError, UnknownRevisionError
from airflow_barrier.protocol.journal import JournalHead
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.revisions import Revision, RevisionState
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.tables.port import Publication
from tests.crash.shopping import purchases
from tests.recovery.backups import Backups, put_back_outside
from tests.recovery.dying import killed_at
from tests.revising.world import RevisedShop, shop_on
from tests.support.kept import Kept
from tests.support.postgresql import PostgreSQL
from tests.support.reporting import report

#: Which snapshots a reader gets at a barrier, and in which revision.
Seen = dict[tuple[int, int | None], dict[str, int | None]]


@dataclass
class Lossy:
    """A shop with a MetaService that can be lost; its catalog goes with it where they share a database."""

    shop: RevisedShop
    backups: Backups

    def connect(self) -> RevisedShop:
        """As the next process does."""
        self.shop.deployment.close()
        deployment = Deployment.connect(self.backups.settings)
        self.shop = RevisedShop(self.shop.shop, deployment, self.shop.landed)
        return self.shop

    def lose(self) -> RevisedShop:
        return self._go_back(self.backups.lose)

    def put_back(self) -> RevisedShop:
        return self._go_back(self.backups.put_back)

    def _go_back(self, how: Callable[[], None]) -> RevisedShop:
        outside = self.shop.deployment.tables.metadata_locations([self.shop.shop.outside])
        self.shop.deployment.close()
        how()
        shop = self.connect()
        put_back_outside(shop.deployment, outside)
        return shop


@pytest.fixture(params=["sqlite"])
def world(request: pytest.FixtureRequest, tmp_path: Path, postgresql: PostgreSQL, kept: Kept) -> Iterator[Lossy]:
    with shop_on(request.param, tmp_path, postgresql, kept) as shop:
        world = Lossy(shop, Backups(shop.shop.settings, tmp_path, postgresql))
        yield world
        world.shop.deployment.close()


apart = pytest.mark.parametrize("world", ["sqlite apart"], indirect=True)


def revise(shop: RevisedShop, day: int, **wanted: Any) -> Revision:
    """A day corrected: its first purchase is all there was."""
    revision = stage(shop, day, **wanted)
    assert isinstance(shop.publish(revision), Swapped)
    return revision


def stage(shop: RevisedShop, day: int, **wanted: Any) -> Revision:
    shop.correct(day, shop.landed[day][:1])
    revision = shop.begin(day, **wanted)
    shop.replay_all(revision)
    return revision


def decide(shop: RevisedShop, revision: Revision) -> tuple[Revision, list[Publication]]:
    """Everything up to the publish, and what that would do."""
    deployment, name, number = shop.deployment, shop.shop.name, revision.revision
    (head,) = deployment.meta.barriers.newest(name, [BarrierState.COMMIT], limit=1)
    mains = deployment.tables.mains(shop.shop.tables())
    decided = deployment.meta.revisions.begin_swap(name, number, head.barrier_id, mains, "test")
    assert decided.head is not None
    rows = deployment.meta.revisions.swap_rows(name, number)
    barriers = [shop.barrier(barrier_id) for barrier_id in rows.barriers]
    write_revision(deployment, decided, barriers, rows.before)
    return decided, publications_of(deployment, decided, decided.head, rows, decided.expected)


def seen(shop: RevisedShop) -> Seen:
    """All that readers can ask for."""
    meta, name, level = shop.deployment.meta, shop.shop.name, Level.REPEATABLE_READ
    found: Seen = {}
    for barrier in meta.answers.readable(name):
        for number in (None, *range(barrier.computed_in + 1)):
            with suppress(UnknownRevisionError):
                tables = meta.answers.resolve(name, level, at=barrier.barrier_id, revision=number).tables
                found[barrier.barrier_id, number] = {table: each.snapshot_id for table, each in tables.items()}
    return found


def numbers(shop: RevisedShop) -> dict[int, int]:
    return {each.barrier_id: each.computed_in for each in shop.deployment.meta.answers.readable(shop.shop.name)}


def states(shop: RevisedShop) -> dict[int, RevisionState]:
    return {each.revision: each.state for each in shop.deployment.meta.revisions.newest(shop.shop.name, 100)}


def branches(shop: RevisedShop, revision: int) -> list[str]:
    refs = (shop.deployment.tables.load(table).metadata.refs for table in shop.shop.tables())
    return [name for each in refs for name in each if f"_r{revision}_" in name]


def recovered(shop: RevisedShop) -> tuple[int, ...]:
    return recover(shop.deployment, shop.shop.name, actor="test", reason="test").revisions


def goes_on(shop: RevisedShop, day: int, number: int) -> None:
    """The next day comes, and is corrected, by a revision whose number nobody has had."""
    shop.day(day)
    assert shop.at() == shop.mains() == shop.expected(day)
    revision = stage(shop, day)
    assert revision.revision == number
    assert isinstance(shop.publish(revision), Swapped)
    assert shop.at() == shop.mains() == shop.expected(day)
    assert shop.at(day - 1) == shop.expected(day - 1)


# --- lost altogether ------------------------------------------------------------------------------


@pytest.mark.parametrize("world", ["sqlite", "postgresql"], indirect=True)
def test_what_revisions_published_is_read_as_before_the_loss(world: Lossy) -> None:
    shop = world.shop
    shop.days(1, 2)
    shop.day(3, ["open", "load", "amount", "price"])
    revise(shop, 2)  # re-points the open one, which commits in its own time
    shop.day(3, ["commit"])
    shop.day(4)
    cancel_revision(shop.deployment, shop.shop.name, shop.begin(4).revision, reason="no", actor="person")
    priced = shop.begin(3, changed=["price"])
    shop.replay_all(priced)
    assert isinstance(shop.publish(priced), Swapped)
    shop.day(5)
    staging = shop.begin(1)
    shop.replay(staging, 1)
    before, were = seen(shop), numbers(shop)
    assert were == {1: 0, 2: 1, 3: 3, 4: 3, 5: 0}
    shop = world.lose()
    with pytest.raises(LostStateError, match="recover shop"):
        shop.day(6, ["open"])
    assert recovered(shop) == (1, 3)
    assert (seen(shop), numbers(shop)) == (before, were)
    assert states(shop) == {1: RevisionState.COMMIT, 3: RevisionState.COMMIT, 4: RevisionState.CANCELLED}
    assert branches(shop, 4) == []
    assert recovered(shop) == ()
    goes_on(shop, 6, number=5)


@pytest.mark.kills("recovered-revision-numbers-are-new")
def test_a_revision_that_was_being_staged_when_all_was_lost_keeps_its_number(world: Lossy) -> None:
    shop = world.shop
    shop.days(1, 2)
    before = seen(shop)
    stage(shop, 2)
    shop = world.lose()
    assert recovered(shop) == ()
    assert seen(shop) == before
    assert states(shop) == {1: RevisionState.CANCELLED}
    assert branches(shop, 1) == []
    assert shop.begin(2).revision == 2


def test_a_publisher_that_died_before_it_wrote_the_barriers_files(world: Lossy) -> None:
    shop = world.shop
    shop.days(1, 3)
    tables = shop.deployment.tables
    uris = [entry_uri(shop.deployment, "shop", barrier_id) for barrier_id in (2, 3)]
    old = [tables.read_text(uri) for uri in uris]
    revise(shop, 2)
    before = seen(shop)
    for uri, text in zip(uris, old, strict=True):
        tables.write_text(uri, text)
    assert recovered(shop) == ()  # nothing is lost yet, and nothing is wrong
    assert seen(shop) == before
    shop = world.lose()
    assert recovered(shop) == (1,)
    assert seen(shop) == before
    assert numbers(shop) == {1: 0, 2: 1, 3: 1}


def test_files_that_left_an_epoch_and_came_back_in_another(world: Lossy) -> None:
    shop = world.shop
    shop.days(1, 2)
    world.backups.back_up()
    rows, shop.landed[1] = shop.landed[1], [{"id": 19, "amount": 5, "price": 7}]
    shop.file(1).unlink()
    shop.deliver(1, shop.landed[1], "again.parquet")
    revision = shop.begin(1, recut=["purchases"])
    shop.replay_all(revision)
    assert isinstance(shop.publish(revision), Swapped)
    shop.deliver(1, rows, "part.parquet")
    shop.landed[3] = rows
    shop.day(3)
    before = {day: shop.deployment.meta.cuts.of("shop", day) for day in (1, 2, 3)}
    for loss in (world.put_back, world.lose):
        shop = loss()
        assert recovered(shop) == (1,)
        assert {day: shop.deployment.meta.cuts.of("shop", day) for day in (1, 2, 3)} == before
        assert shop.deployment.meta.revisions.get("shop", 1).recut == ("purchases",)
        assert shop.at() == shop.expected(3)


# --- an old backup --------------------------------------------------------------------------------


@pytest.mark.kills("old-backup-of-a-revision", "revisions-are-recovered")
def test_a_backup_of_before_a_revision_is_noticed_and_caught_up(world: Lossy) -> None:
    shop = world.shop
    shop.days(1, 3)
    world.backups.back_up()
    revise(shop, 2)
    before = seen(shop)
    shop = world.put_back()
    with pytest.raises(LostStateError, match=r"knows revision 1.*revisions up to 0 only.*recover shop"):
        check_lead(shop.deployment, "shop")
    assert recovered(shop) == (1,)
    assert (seen(shop), numbers(shop)) == (before, {1: 0, 2: 1, 3: 1})
    goes_on(shop, 4, number=2)


def test_barriers_and_revisions_of_the_lost_time_come_back_in_their_order(world: Lossy) -> None:
    """At the backup one revision was being staged, beside open barriers; one of these was aborted in the lost time."""
    shop = world.shop
    shop.days(1, 3)
    revision = shop.begin(2)
    shop.replay(revision, 2)
    shop.day(4, ["open", "load"])
    shop.day(5, ["open"])
    world.backups.back_up()
    shop.day(4, ["amount", "price", "commit"])
    abort_barrier(shop.deployment, "shop", 5, reason="no", actor="person")
    shop.day(5)
    assert shop.deployment.meta.barriers.head("shop").barrier_id == 6  # type: ignore[union-attr]
    shop.replay(revision, 3)
    for barrier_id in (4, 6):
        shop.deployment.meta.revisions.extend("shop", 1, "test")
        shop.replay(revision, barrier_id)
    assert isinstance(shop.publish(revision), Swapped)
    revise(shop, 3)
    before, were = seen(shop), numbers(shop)
    shop = world.put_back()
    assert recovered(shop) == (1, 2)
    assert (seen(shop), numbers(shop)) == (before, were)
    assert shop.barrier(5).state is BarrierState.ABORTED
    assert shop.at() == shop.mains() == shop.expected(5)
    shop.day(6)
    assert shop.at() == shop.mains() == shop.expected(6)


@pytest.mark.kills("staging-is-given-up")
def test_a_revision_that_was_being_staged_at_the_backup_is_given_up(world: Lossy) -> None:
    shop = world.shop
    shop.days(1, 3)
    before = seen(shop)
    revision = shop.begin(2)
    shop.replay(revision, 2)
    world.backups.back_up()
    shop = world.put_back()
    assert recovered(shop) == ()
    assert states(shop) == {1: RevisionState.CANCELLED}
    assert branches(shop, 1) == []
    assert seen(shop) == before
    goes_on(shop, 4, number=2)


@pytest.mark.parametrize("journalled", [True, False])
def test_a_revision_that_was_decided_at_the_backup_is_published(world: Lossy, journalled: bool) -> None:
    shop = world.shop
    shop.days(1, 3)
    shop.day(4, ["open", "load"])
    shop.deployment.meta.revisions.gate("shop", (revision := stage(shop, 2)).revision, closed=True, actor="test")
    shop.replay(revision, 4)
    if journalled:
        decide(shop, revision)
    else:
        mains = shop.deployment.tables.mains(shop.shop.tables())
        shop.deployment.meta.revisions.begin_swap("shop", 1, 3, mains, "test")
    world.backups.back_up()
    shop = world.put_back()
    assert recovered(shop) == ((1,) if journalled else ())
    assert states(shop) == {1: RevisionState.COMMIT}
    assert shop.at() == shop.mains() == shop.expected(3)
    assert shop.barrier(4).state is BarrierState.ABORTED
    shop.day(4)
    assert shop.at() == shop.mains() == shop.expected(4)


# --- decided, and not published -------------------------------------------------------------------


@pytest.mark.kills("decided-revision-is-published")
def test_a_decision_that_was_not_published_is_rolled_forward(world: Lossy) -> None:
    shop = world.shop
    shop.days(1, 3)
    decide(shop, stage(shop, 2))
    shop = world.lose()
    assert recovered(shop) == (1,)
    assert [shop.at(day) for day in (1, 2, 3)] == [shop.expected(day) for day in (1, 2, 3)]
    goes_on(shop, 4, number=2)


@apart
def test_a_decision_that_a_table_is_in_the_way_of_is_given_up(world: Lossy) -> None:
    shop = world.shop
    shop.days(1, 3)
    before = seen(shop)
    revision, _ = decide(shop, stage(shop, 2))
    table = shop.shop.table("prices")
    shop.deployment.tables.load(table).append(pa.table({"id": [1], "price": [2]}))
    shop = world.lose()
    assert recovered(shop) == ()
    assert seen(shop) == before
    assert states(shop) == {revision.revision: RevisionState.CANCELLED}
    assert branches(shop, 1) == []
    shop.deployment.tables.load(table).manage_snapshots().rollback_to_snapshot(revision.expected[table]).commit()
    shop = world.lose()  # and what was given up stays so
    assert recovered(shop) == ()
    shop.correct(2, purchases(2, priced=True))
    goes_on(shop, 4, number=2)


@apart
def test_tables_that_were_swapped_one_by_one_are_rolled_forward_whenever_that_dies(world: Lossy) -> None:
    shop, killed = world.shop, 0
    shop.days(1, 3)
    world.backups.back_up()
    _, publications = decide(shop, stage(shop, 2))
    shop.deployment.tables.publish(publications[:1])
    shop = world.put_back()
    for point in count():
        shop.deployment.close()
        if not killed_at(point, world.backups.settings, shop.shop.name):
            break
        killed += 1
        shop = world.put_back()
    shop = world.connect()
    assert [shop.at(day) for day in (1, 2, 3)] == [shop.expected(day) for day in (1, 2, 3)]
    goes_on(shop, 4, number=2)
    assert killed >= 14, "the steps have to be met at all"
    report(f"recovery of a revision: killed at {killed} points")


# --- what else may happen to it -------------------------------------------------------------------


@pytest.mark.kills("origins-revision-is-known")
@apart
def test_a_head_that_lags_does_not_hide_a_revision(world: Lossy) -> None:
    shop = world.shop
    shop.days(1, 3)
    world.backups.back_up()
    revise(shop, 2)
    before = seen(shop)
    head = read_head(shop.deployment, "shop")
    assert head is not None
    write_head(shop.deployment, "shop", JournalHead(head.incarnation, head.barrier_id))
    shop = world.put_back()
    check_lead(shop.deployment, "shop")
    with pytest.raises(LostStateError, match=r"is at revision 1.*revisions up to 0 only.*recover"):
        shop.day(4)
    assert recovered(shop) == (1,)
    assert seen(shop) == before


@pytest.mark.kills("journal-leads-back-to-the-revision")
def test_a_stranger_with_a_revision_of_its_own_is_refused(world: Lossy) -> None:
    """This MetaService has published revision 1, and the journal's revision 2 follows upon none."""
    shop = world.shop
    shop.days(1, 3)
    revise(shop, 2)
    world.backups.back_up()
    revise(shop, 3)
    tables = shop.deployment.tables
    uri = tables.location("_barrier", "shop", "journal", "r2.json")
    tables.write_text(uri, json.dumps({**json.loads(tables.read_text(uri)), "predecessor": 0}))
    shop = world.put_back()
    with pytest.raises(JournalError, match=r"lead back to revision 1, .* found that it leads to revision 0"):
        recovered(shop)
