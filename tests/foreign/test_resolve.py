"""A person leads a BLOCKED barrier out: both ways, again and again, with several tables, and with later barriers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_barrier.coordinator.committing import commit_barrier
from airflow_barrier.protocol.errors import BarrierBlockedError, ForeignWriteError, VoidedAttemptError
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.names import set_aside_tag
from airflow_barrier.protocol.records import StagedTable
from airflow_barrier.protocol.states import AttemptState, BarrierState
from airflow_barrier.spark.spec import ClosingRecord
from tests.foreign.attacked import NEXT, UNDER_WAY, Attacked, Template, epoch
from tests.foreign.deciding import ADOPT, KEEP, block, decide, staged, state
from tests.foreign.hands import Hands
from tests.support.shop import AMOUNT, PRICE, SHOPPING

TAG = set_aside_tag("shopping", UNDER_WAY, 0)


@pytest.fixture
def attacked(template: Template) -> Iterator[Attacked]:
    """Barrier 3 is PRECOMMIT."""
    with template.put_back("staged") as attacked:
        yield attacked


def tag_of(attacked: Attacked, name: str, table: str = AMOUNT) -> int | None:
    ref = attacked.shop.deployment.tables.load(table).refs().get(name)
    return ref.snapshot_id if ref else None


# --- keeping ours -------------------------------------------------------------------------------------


def test_main_moves_again_after_the_person_looked(attacked: Attacked) -> None:
    block(attacked)
    decide(attacked, KEEP)
    attacked.hands.append()
    theirs = attacked.main()
    with pytest.raises(BarrierBlockedError, match=f"found snapshot {theirs}"):
        attacked.commit()
    assert attacked.main() == theirs, "only the one snapshot that the person saw may be left"
    # even a compaction: the person has not seen it
    decide(attacked, KEEP)
    attacked.hands.compact()
    with pytest.raises(BarrierBlockedError):
        attacked.commit()
    theirs = attacked.main()
    decide(attacked, KEEP)
    attacked.commit()
    attacked.check_mains(UNDER_WAY)
    assert tag_of(attacked, TAG) == theirs
    assert attacked.rows(AMOUNT, theirs) == [7, 7, 100, 200], "and can be read"


@pytest.mark.kills("published-anew")
@pytest.mark.parametrize("hand", ["append", "rollback"])
def test_a_table_that_main_has_been_at_is_published_anew(template: Template, hand: str) -> None:
    """Of an unchanged table ours is where `main` was: it gets a new id, and a zombie's compare-and-set fails."""
    with template.put_back("open") as attacked:
        unchanged(attacked)
        before = attacked.main()
        block(attacked, hand)
        theirs = attacked.main()
        decide(attacked, KEEP)
        attacked.commit()
        main = attacked.main()
        assert main not in (before, theirs), "main never returns to an id that it left"
        snapshot = attacked.hands.table.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        assert (snapshot.parent_snapshot_id, snapshot.summary.operation.value) == (before, "replace")
        attacked.oracle[UNDER_WAY] = [100, 200]
        attacked.oracle[NEXT] = [100, 200, 400]
        attacked.read()
        attacked.check_mains(UNDER_WAY)
        assert tag_of(attacked, attacked.barrier.tag) == before, "the map's snapshot is held by the barrier's tag"
        attacked.shop.commit(attacked.stage_next())
        attacked.check_mains(NEXT)


def unchanged(attacked: Attacked) -> None:
    """Job `amount` declares its table unchanged at barrier 3."""
    from airflow_barrier.coordinator.staging import close

    ready = attacked.shop.begin(attacked.barrier, "amount")
    record = ClosingRecord(ready.attempt.attempt_id, {AMOUNT: StagedTable(AMOUNT, None, unchanged=True)})
    close(attacked.shop.deployment, ready.attempt, record=record, actor="test")


def test_later_barriers_that_are_staged_stay_staged(attacked: Attacked) -> None:
    following = attacked.stage_next()
    block(attacked)
    resolved = decide(attacked, KEEP)
    assert resolved.voided == resolved.computed_from_ours == ()
    attacked.shop.commit(following)
    attacked.check_mains(NEXT)


def test_the_same_on_a_republished_table(template: Template) -> None:
    """What was staged on the snapshot that main left is published on top of its new edition."""
    with template.put_back("open") as attacked:
        unchanged(attacked)
        following = attacked.stage_next()
        block(attacked)
        decide(attacked, KEEP)
        attacked.shop.commit(following)
        attacked.oracle[NEXT] = [100, 200, 400]
        attacked.check_mains(NEXT)


# --- adopting theirs ----------------------------------------------------------------------------------


def test_what_later_barriers_built_on_ours_is_staged_anew_on_theirs(attacked: Attacked) -> None:
    ours = staged(attacked)
    following = attacked.stage_next()
    block(attacked)
    resolved = decide(attacked, ADOPT)
    assert [(each.job, each.barrier_id) for each in resolved.voided] == [("amount", NEXT)]
    assert (resolved.ours, resolved.theirs, resolved.tag) == (ours, attacked.main(), TAG)
    assert state(attacked, NEXT) is BarrierState.OPEN
    attacked.oracle[UNDER_WAY], attacked.oracle[NEXT] = [100, 200, 7], [100, 200, 7, 400]
    attacked.read()
    attacked.commit()
    attacked.check_mains(UNDER_WAY)
    assert tag_of(attacked, TAG) == ours, "our rows are not published, and can be read"
    attacked.shop.process(following, "amount", epoch(NEXT), generation="cleared")
    attacked.shop.commit(following)
    attacked.check_mains(NEXT)


@pytest.mark.kills("restaging-voids-consumers")
def test_a_running_attempt_on_ours_is_voided_too(attacked: Attacked) -> None:
    following = attacked.shop.open(NEXT)
    attacked.shop.process(following, "load", epoch(NEXT))
    zombie = attacked.shop.begin(following, "amount")
    record = attacked.shop.write(zombie, epoch(NEXT))
    block(attacked)
    decide(attacked, ADOPT)
    assert attacked.meta.attempts.get(zombie.attempt.attempt_id).state is AttemptState.VOIDED
    with pytest.raises(VoidedAttemptError, match="adopt-theirs"):
        attacked.meta.attempts.close(zombie.attempt.attempt_id, record.staged, "zombie")


def test_an_inlet_that_theirs_stands_of_names_what_was_computed_from_ours(attacked: Attacked) -> None:
    following = attacked.stage_next()
    hands = Hands(attacked.shop, attacked.barrier, attacked.hands.previous, name=SHOPPING)
    block(attacked, "append", hands)
    resolved = decide(attacked, ADOPT, SHOPPING)
    assert resolved.computed_from_ours == (AMOUNT, PRICE)
    assert {each.job for each in resolved.voided} == {"load", "amount", "price"}
    attacked.commit()
    for job in ("load", "amount", "price"):
        attacked.shop.process(following, job, epoch(NEXT), generation="cleared")
    attacked.shop.commit(following)
    assert attacked.rows(SHOPPING, attacked.main(SHOPPING)) == [7, 1000, 2000, 4000]
    assert attacked.rows(AMOUNT, attacked.main()) == attacked.expected(AMOUNT, NEXT)


def test_a_mind_is_changed_when_main_moves_again(attacked: Attacked) -> None:
    ours, following = staged(attacked), attacked.stage_next()
    block(attacked)
    decide(attacked, ADOPT)
    attacked.shop.process(following, "amount", epoch(NEXT), generation="on theirs")
    attacked.hands.append()
    with pytest.raises(BarrierBlockedError):
        attacked.commit()
    resolved = decide(attacked, KEEP)
    assert resolved.ours == ours, "ours is remembered"
    assert [(each.job, each.barrier_id) for each in resolved.voided] == [("amount", NEXT)], "it stood on theirs"
    attacked.commit()
    attacked.check_mains(UNDER_WAY)
    attacked.shop.process(following, "amount", epoch(NEXT), generation="on ours again")
    attacked.shop.commit(following)
    attacked.check_mains(NEXT)


# --- several tables, several committers ---------------------------------------------------------------


def test_several_tables_are_decided_about_one_by_one(attacked: Attacked) -> None:
    other = Hands(attacked.shop, attacked.barrier, attacked.hands.previous, name=PRICE)

    def both() -> None:
        attacked.hands.append()
        other.rollback()

    with attacked.interrupted("publishing", both), pytest.raises(BarrierBlockedError) as blocked:
        attacked.commit()
    assert AMOUNT in str(blocked.value)
    assert PRICE in str(blocked.value)
    first = decide(attacked, ADOPT)
    assert first.barrier.state is BarrierState.BLOCKED
    assert PRICE in str(first.barrier.reason)
    assert AMOUNT not in str(first.barrier.reason)
    assert decide(attacked, KEEP, PRICE).barrier.state is BarrierState.COMMITTING
    attacked.commit()
    attacked.oracle[UNDER_WAY] = [100, 200, 7]
    attacked.check_mains(UNDER_WAY)
    attacked.read()


@pytest.mark.kills("same-decision-throughout")
def test_a_committer_that_slept_through_the_decision_does_not_go_by_the_old_one(attacked: Attacked) -> None:
    """It planned to publish ours over what was expected; meanwhile a person adopted theirs, and main is back again."""
    expected, ours = attacked.main(), staged(attacked)
    assert expected is not None

    def meanwhile() -> None:
        """All that happens while the committer sleeps: somebody else's commit, the decision, and main set back."""
        publishing = attacked.meta.publishing.swapping
        del attacked.meta.publishing.swapping  # type: ignore[method-assign]
        attacked.hands.append()
        with pytest.raises(BarrierBlockedError):
            attacked.commit()
        decide(attacked, ADOPT)
        attacked.hands.set_main_back(expected)
        attacked.meta.publishing.swapping = publishing  # type: ignore[method-assign]

    with attacked.interrupted("publishing", meanwhile), pytest.raises(BarrierBlockedError):
        attacked.commit()
    assert attacked.main() == expected
    assert attacked.main() != ours
    decide(attacked, KEEP)
    attacked.commit()
    attacked.check_mains(UNDER_WAY)


def test_an_outage_blocks_nothing(attacked: Attacked) -> None:
    from pathlib import Path
    from urllib.parse import urlparse

    from airflow_barrier.protocol.errors import CatalogUnavailableError

    folder = Path(urlparse(attacked.hands.table.metadata_location).path).parent
    aside = folder.with_name("out_of_reach")

    def unplug() -> None:
        folder.rename(aside)
        folder.write_text("not a folder")

    with attacked.interrupted("committing", unplug), pytest.raises(CatalogUnavailableError):
        attacked.commit()
    assert state(attacked) is BarrierState.COMMITTING
    folder.unlink()
    aside.rename(folder)
    attacked.commit()
    attacked.check_mains(UNDER_WAY)


def test_readers_stay_where_they_are_while_a_barrier_is_blocked(attacked: Attacked) -> None:
    following = attacked.stage_next()
    block(attacked)
    for _ in range(3):
        with pytest.raises(BarrierBlockedError):
            commit_barrier(attacked.shop.deployment, "shopping", following.barrier_id, actor="test")
    assert attacked.meta.answers.resolve("shopping", Level.REPEATABLE_READ).barrier_id == UNDER_WAY - 1
    attacked.others_are_at(UNDER_WAY - 1)
    with pytest.raises(ForeignWriteError, match="is BLOCKED"):
        attacked.commit()
