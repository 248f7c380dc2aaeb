"""History corrected barrier by barrier, aside, and swapped at once."""

from __future__ import annotations

from airflow_barrier.coordinator.revisions.publish import NotStaged, Swapped
from airflow_barrier.protocol.journal import RevisionEntry
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.revisions import RevisionState
from airflow_barrier.protocol.states import BarrierState
from tests.revising.world import RevisedShop


def test_a_corrected_day_is_in_every_table_at_every_barrier_and_the_old_revision_stays(shop: RevisedShop) -> None:
    shop.days(1, 4)
    before = {day: shop.expected(day) for day in range(1, 5)}
    shop.correct(2, [*shop.landed[2][1:], {"id": 29, "amount": 5, "price": 7}])
    revision = shop.begin(2)
    for barrier in (2, 3, 4):
        shop.replay(revision, barrier)
        assert shop.at() == shop.mains() == before[4]  # nothing is seen of it yet
    assert isinstance(swapped := shop.publish(revision), Swapped)
    assert swapped.now
    assert [each.barrier_id for each in swapped.barriers] == [2, 3, 4]
    for day in range(1, 5):
        assert shop.at(day) == shop.expected(day), day
        assert shop.at(day, revision=0) == before[day], day
        number = 0 if day == 1 else revision.revision
        assert shop.barrier(day).computed_in == number
        for table, rows in shop.expected(day).items():
            assert shop.by_tag(table, f"barrier_shop_b{day}_r{number}") == rows
    assert shop.mains() == shop.expected(4)
    shop.days(5, 6)
    assert shop.at() == shop.mains() == shop.expected(6)


def test_barriers_that_commit_meanwhile_are_caught_up(shop: RevisedShop) -> None:
    shop.days(1, 3)
    before = dict(shop.landed)
    shop.correct(2, shop.landed[2][:1])
    revision = shop.begin(2)
    shop.replay(revision, 2)
    shop.day(4)
    assert shop.at() == shop.expected(4, {**before, 4: shop.landed[4]})
    shop.replay(revision, 3)
    missing = shop.publish(revision)
    assert isinstance(missing, NotStaged)
    assert "barrier 4" in missing.reason
    shop.replay(revision, 4)
    assert isinstance(shop.publish(revision), Swapped)
    assert [shop.at(day) for day in (1, 2, 3, 4)] == [shop.expected(day) for day in (1, 2, 3, 4)]


def test_open_barriers_are_repointed_and_nobody_steps_back(shop: RevisedShop) -> None:
    shop.days(1, 2)
    shop.day(3, ["open", "load", "amount", "price"])
    shop.day(4, ["open", "load", "amount"])
    assert shop.at_level(Level.READ_COMMITTED)[0] == 3
    shop.correct(2, shop.landed[2][:1])
    revision = shop.begin(2)
    shop.replay_all(revision)
    assert isinstance(shop.publish(revision), Swapped)
    assert shop.at_level(Level.REPEATABLE_READ) == (2, shop.expected(2))
    assert shop.at_level(Level.READ_COMMITTED) == (4, shop.expected(4))
    assert [shop.barrier(each).state for each in (2, 3, 4)] == [
        BarrierState.COMMIT,
        BarrierState.PRECOMMIT,
        BarrierState.PRECOMMIT,
    ]
    shop.day(3, ["commit"])
    assert shop.at() == shop.mains() == shop.expected(3)
    shop.day(4, ["commit"])
    assert shop.at() == shop.mains() == shop.expected(4)
    shop.day(5)
    assert shop.at() == shop.mains() == shop.expected(5)


def test_only_what_depends_on_the_change_is_computed_again(shop: RevisedShop) -> None:
    shop.days(1, 3)
    table = shop.shop.table("shopping")
    was = shop.deployment.tables.mains([table])
    revision = shop.begin(2, changed=["price"])
    assert revision.tables == (shop.shop.table("prices"),)
    shop.replay_all(revision)
    shop.publish(revision)
    assert shop.deployment.tables.mains([table]) == was
    assert [shop.at(day) for day in (1, 2, 3)] == [shop.expected(day) for day in (1, 2, 3)]
    assert shop.by_tag(table, "barrier_shop_b2_r1") == shop.expected(2)[table]


def test_a_revision_after_a_revision(shop: RevisedShop) -> None:
    shop.days(1, 3)
    kept = [{day: shop.expected(day) for day in (1, 2, 3)}]
    for first, day in ((2, 2), (1, 1)):
        shop.correct(day, shop.landed[day][:1])
        revision = shop.begin(first)
        shop.replay_all(revision)
        assert isinstance(shop.publish(revision), Swapped)
        kept.append({each: shop.expected(each) for each in (1, 2, 3)})
    for number, then in enumerate(kept):
        for day in (2, 3):
            assert shop.at(day, revision=number) == then[day], (number, day)
    assert shop.at(1, revision=0) == kept[0][1]
    assert shop.at(1) == kept[2][1]
    shop.day(4)
    assert shop.at() == shop.mains() == shop.expected(4)


def test_a_cancelled_revision_leaves_nothing(shop: RevisedShop) -> None:
    from airflow_barrier.coordinator.revisions.publish import cancel_revision

    shop.days(1, 3)
    before = {day: shop.at(day) for day in (1, 2, 3)}
    revision = shop.begin(2)
    shop.replay(revision, 2)
    cancelled = cancel_revision(shop.deployment, shop.shop.name, revision.revision, reason="no", actor="person")
    assert cancelled.state is RevisionState.CANCELLED
    assert {day: shop.at(day) for day in (1, 2, 3)} == before
    refs = shop.deployment.tables.load(shop.shop.table("shopping")).metadata.refs
    assert not [name for name in refs if "_r1" in name]
    shop.days(4, 5)
    assert shop.at() == shop.mains() == shop.expected(5)


def test_the_journal_of_a_revision_has_what_was_cut_anew(embedded: RevisedShop) -> None:
    embedded.days(1, 3)
    old = {day: embedded.deployment.meta.cuts.of(embedded.shop.name, day) for day in (2, 3)}
    embedded.correct(2, [*embedded.landed[2], {"id": 29, "amount": 5, "price": 7}])
    revision = embedded.begin(2)
    embedded.replay_all(revision)
    embedded.publish(revision)
    text = embedded.deployment.tables.read_text(
        embedded.deployment.tables.location("_barrier", embedded.shop.name, "journal", "r1.json")
    )
    entries = {entry.barrier_id: entry.cuts for entry in RevisionEntry.loads(text).entries}
    now = {day: embedded.deployment.meta.cuts.of(embedded.shop.name, day) for day in (2, 3)}
    assert entries == now
    assert now[2] != old[2]
