"""What a BLOCKED barrier says, what is written down of a decision, and which decisions are refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_barrier.protocol.errors import (
    ConfigurationError,
    IllegalTransitionError,
    MissingTableError,
    RefTakenError,
    SnapshotMissingError,
    UnknownTableError,
)
from airflow_barrier.protocol.states import BarrierState, Decision
from tests.foreign.attacked import UNDER_WAY, Attacked, Template
from tests.foreign.deciding import ADOPT, KEEP, block, decide, staged, state
from tests.support.shop import AMOUNT, PRICE

TAG = "barrier_shopping_b3_r0_set_aside"


@pytest.fixture
def attacked(template: Template) -> Iterator[Attacked]:
    """Barrier 3 is PRECOMMIT."""
    with template.put_back("staged") as attacked:
        yield attacked


def test_the_reason_names_table_expected_found_and_the_commands(attacked: Attacked) -> None:
    expected = attacked.main()
    said = str(block(attacked))
    theirs = attacked.main()
    assert f"table {AMOUNT}: expected main at snapshot {expected}, found snapshot {theirs} (append" in said
    for way in ("--keep-ours", "--adopt-theirs"):
        assert f"`airflow-barrier barrier resolve shopping 3 --table {AMOUNT} {way} --reason TEXT`" in said
    assert TAG in said
    assert attacked.meta.barriers.get("shopping", UNDER_WAY).reason in said
    assert "abort" not in said, "from the decision on nothing can be given up"


def test_both_ways_are_audited(attacked: Attacked) -> None:
    ours, _ = staged(attacked), block(attacked)
    theirs = attacked.main()
    decide(attacked, KEEP)
    entries = [each for each in attacked.meta.audit.newest("shopping", UNDER_WAY) if each.event == "keep-ours"]
    assert {(each.kind, each.subject, each.actor) for each in entries} == {
        ("barrier", "3", "alice"),
        ("table", AMOUNT, "alice"),
    }
    detail = {"table": AMOUNT, "reason": "looked at it", "theirs": theirs, "ours": ours}
    assert [each.detail for each in entries] == [detail, detail]
    assert [(each.before, each.after) for each in entries if each.kind == "barrier"] == [("BLOCKED", "COMMITTING")]


@pytest.mark.kills("only-blocked-is-unblocked")
def test_what_cannot_be_decided_is_refused(attacked: Attacked) -> None:
    with pytest.raises(IllegalTransitionError, match="expected BLOCKED, found PRECOMMIT"):
        decide(attacked, KEEP)
    block(attacked)
    with pytest.raises(UnknownTableError, match=r"found shop\.nothing"):
        decide(attacked, KEEP, "shop.nothing")
    with pytest.raises(ConfigurationError, match=f"{PRICE} can be published; in the way are {AMOUNT}"):
        decide(attacked, KEEP, PRICE)
    assert state(attacked) is BarrierState.BLOCKED
    assert decide(attacked, KEEP).barrier.state is BarrierState.COMMITTING
    with pytest.raises(IllegalTransitionError, match="expected BLOCKED, found COMMITTING"):
        decide(attacked, KEEP)
    attacked.commit()
    with pytest.raises(IllegalTransitionError, match="expected BLOCKED, found COMMIT"):
        decide(attacked, ADOPT)


def test_what_was_mended_by_hand_goes_on_and_leaves_nothing_to_adopt(attacked: Attacked) -> None:
    expected = attacked.main()
    block(attacked)
    assert expected is not None
    attacked.hands.set_main_back(expected)
    with pytest.raises(ConfigurationError, match=r"nothing is in the way any more; `airflow-barrier .*--keep-ours"):
        decide(attacked, ADOPT)
    assert decide(attacked, KEEP).decision is None
    attacked.commit()
    attacked.check_mains(UNDER_WAY)


@pytest.mark.kills("kept-snapshot-is-there")
def test_ours_cannot_be_kept_when_it_is_gone_nor_decided_about_a_table_that_is(attacked: Attacked) -> None:
    said = str(block(attacked, "recreate"))
    with pytest.raises(SnapshotMissingError, match=r"so it cannot be kept; `airflow-barrier .*--adopt-theirs"):
        decide(attacked, KEEP)
    assert AMOUNT in said
    attacked.hands.drop()
    with pytest.raises(MissingTableError, match=AMOUNT):
        decide(attacked, ADOPT)


@pytest.mark.kills("decision-can-be-carried-out")
def test_our_tags_name_has_to_be_freed_first(attacked: Attacked) -> None:
    said = str(block(attacked, "take_tag"))
    assert f"ALTER TABLE {AMOUNT} DROP TAG `barrier_shopping_b3_r0`" in said
    for decision in Decision:
        with pytest.raises(RefTakenError, match="DROP TAG"):
            decide(attacked, decision)


@pytest.mark.kills("set-aside-is-ours")
def test_the_name_of_the_tag_that_sets_aside_has_to_be_free_too(attacked: Attacked) -> None:
    there = attacked.main()
    assert there is not None
    block(attacked)
    tables = attacked.shop.deployment.tables
    tables.pin(AMOUNT, TAG, there)
    for decision in Decision:
        with pytest.raises(RefTakenError, match=f"expected no ref {TAG}"):
            decide(attacked, decision)
    assert tables.load(AMOUNT).refs()[TAG].snapshot_id == there
    assert state(attacked) is BarrierState.BLOCKED


def test_a_reason_names_some_of_very_many_tables(attacked: Attacked) -> None:
    from airflow_barrier.coordinator.blocking import reason_of
    from airflow_barrier.protocol.errors import BarrierError, ForeignWriteError

    findings: dict[str, BarrierError] = {f"shop.o'brien {n}": ForeignWriteError(f"table {n} moved") for n in range(9)}
    reason = reason_of(attacked.barrier, findings)
    assert reason.endswith(". and 4 tables more")
    assert reason.count(" moved. A person decides: `airflow-barrier barrier resolve shopping 3 --table ") == 5
    assert """--table 'shop.o'"'"'brien 0' --keep-ours""" in reason, "as a shell takes it"
