"""What becomes of a barrier when other people lay hands on one of its tables, for each hand at each moment.

The expectations stand in one table. A cell says what the barrier does, and each way out of it is tried; in the end
all tables hold exactly what an oracle says, nothing of others is overwritten unless a person decided it, and no reader
found a torn answer or a step back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from airflow_barrier.coordinator.resolving import resolve_table
from airflow_barrier.protocol.errors import (
    BarrierBlockedError,
    BarrierError,
    ForeignWriteError,
    MissingTableError,
    RefTakenError,
    SnapshotMissingError,
)
from airflow_barrier.protocol.names import set_aside_tag
from airflow_barrier.protocol.states import BarrierState, Decision
from tests.foreign.attacked import NEXT, UNDER_WAY, Attacked, Template, epoch
from tests.foreign.hands import Hands
from tests.support.reporting import report
from tests.support.shop import AMOUNT

MOMENTS = ("before", "staged", "looked", "committing", "publishing", "after")

# before:      the job that writes the table has not begun
# staged:      the barrier is PRECOMMIT
# looked:      the commit has looked at the tables, and has not decided yet
# committing:  decided, the journal and the publish are yet to come
# publishing:  the documents of the publish are written, and its transaction has not begun
# after:       the barrier is COMMIT
#
# absorbed   the commit goes on as if nothing had happened
# main, ref, gone, missing   refused before the decision (after COMMIT: by the next barrier): ForeignWriteError,
#            RefTakenError, SnapshotMissingError, MissingTableError; nothing has happened
# BLOCKED    by the same finding, after the decision
MATRIX = """
hand                      before    staged    looked    committing  publishing  after
append                    main      main      BLOCKED   BLOCKED     BLOCKED     main
overwrite                 main      main      BLOCKED   BLOCKED     BLOCKED     main
delete                    main      main      BLOCKED   BLOCKED     BLOCKED     main
rollback                  main      main      BLOCKED   BLOCKED     BLOCKED     main
compact                   absorbed  absorbed  absorbed  absorbed    absorbed    absorbed
expire                    absorbed  absorbed  absorbed  absorbed    absorbed    absorbed
drop_branches             absorbed  absorbed  absorbed  absorbed    absorbed    absorbed
drop_branches_and_expire  absorbed  gone      BLOCKED   BLOCKED     BLOCKED     absorbed
drop_tags                 absorbed  absorbed  absorbed  absorbed    absorbed    absorbed
move_tag                  absorbed  absorbed  absorbed  absorbed    absorbed    absorbed
take_tag                  ref       ref       BLOCKED   BLOCKED     BLOCKED     absorbed
add_column                absorbed  absorbed  absorbed  absorbed    absorbed    absorbed
drop_column               absorbed  absorbed  absorbed  absorbed    absorbed    absorbed
recreate                  main      main      BLOCKED   BLOCKED     BLOCKED     main
drop                      missing   missing   BLOCKED   BLOCKED     BLOCKED     missing
rename                    missing   missing   BLOCKED   BLOCKED     BLOCKED     missing
"""

ERRORS: dict[str, type[BarrierError]] = {
    "main": ForeignWriteError,
    "ref": RefTakenError,
    "gone": SnapshotMissingError,
    "missing": MissingTableError,
}
#: Ways out of a refusal and of BLOCKED, by hand.
MOVED = (("set main back",), ("keep-ours", "adopt-theirs", "set main back"))
WAYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "append": MOVED,
    "overwrite": MOVED,
    "delete": MOVED,
    "rollback": MOVED,
    "drop_branches_and_expire": (("restage",), ("adopt-theirs",)),
    "take_tag": (("free_tag",), ("free_tag",)),
    "recreate": (("register_again",), ("adopt-theirs", "register_again")),
    "drop": (("register_again",), ("register_again",)),
    "rename": (("rename_back",), ("rename_back",)),
}
#: What the table holds when theirs stands at barrier 3.
THEIRS = {
    "append": [7, 100, 200],
    "overwrite": [7],
    "delete": [200],
    "rollback": [100],
    "drop_branches_and_expire": [100, 200],
    "recreate": [7],
}
#: After these, old snapshots of the table, or the table, may be gone, and reading them is an error.
DESTROY = ("drop_branches_and_expire", "recreate", "drop", "rename")


def cells() -> Iterator[tuple[str, str, str, str]]:
    header, *lines = MATRIX.strip().splitlines()
    assert tuple(header.split()[1:]) == MOMENTS
    for line in lines:
        hand, *outcomes = line.split()
        for moment, outcome in zip(MOMENTS, outcomes, strict=True):
            refused, blocked = WAYS.get(hand, ((), ()))
            ways = {"absorbed": ("go on",), "BLOCKED": blocked}.get(outcome, refused)
            for way in ways:
                yield hand, moment, outcome, way


CELLS = list(cells())


@pytest.fixture
def attacked(template: Template, request: pytest.FixtureRequest) -> Iterator[Attacked]:
    _, moment, _, _ = request.param
    with template.put_back("open" if moment == "before" else "staged") as attacked:
        yield attacked


@pytest.mark.parametrize(
    ("attacked", "cell"),
    # hands that are absorbed go the same way at each moment: of them a landing plays a part
    [
        pytest.param(cell, cell, id="-".join(cell), marks=[pytest.mark.drawn] if cell[2] == "absorbed" else [])
        for cell in CELLS
    ],
    indirect=["attacked"],
)
def test_hands_on_a_table(attacked: Attacked, cell: tuple[str, str, str, str]) -> None:
    hand, moment, outcome, way = cell
    attacked.destroyed = hand in DESTROY
    act: Callable[[], None] = getattr(attacked.hands, hand)
    expected = attacked.main()
    attacked.read()
    if moment in ("before", "staged"):
        act()
        refused_or_absorbed(attacked, outcome, way, expected)
    elif moment == "after":
        attacked.commit()
        published = attacked.main()
        attacked.read()
        act()
        attacked.read()
        next_refuses_or_goes_on(attacked, outcome, way, published)
    else:
        with attacked.interrupted(moment, act):
            blocked_or_absorbed(attacked, hand, outcome, way, expected)
    finish(attacked)


def refused_or_absorbed(attacked: Attacked, outcome: str, way: str, expected: int | None) -> None:
    attacked.read()
    if outcome == "absorbed":
        process_and_commit(attacked)
        return
    there = main_or_none(attacked)
    with pytest.raises(ERRORS[outcome], match=AMOUNT):
        process_and_commit(attacked)
    assert attacked.meta.barriers.get("shopping", UNDER_WAY).state in (BarrierState.OPEN, BarrierState.PRECOMMIT)
    assert main_or_none(attacked) == there, "nothing of theirs was overwritten"
    attacked.others_are_at(UNDER_WAY - 1)
    attacked.read()
    mend(attacked, way, expected)
    process_and_commit(attacked)


def next_refuses_or_goes_on(attacked: Attacked, outcome: str, way: str, published: int | None) -> None:
    if outcome == "absorbed":
        return
    there = main_or_none(attacked)
    barrier = attacked.shop.open(NEXT)
    attacked.shop.process(barrier, "load", epoch(NEXT))
    with pytest.raises(ERRORS[outcome], match=AMOUNT):
        attacked.shop.process(barrier, "amount", epoch(NEXT))
    assert main_or_none(attacked) == there, "nothing of theirs was overwritten"
    attacked.read()
    mend(attacked, way, published)


def blocked_or_absorbed(attacked: Attacked, hand: str, outcome: str, way: str, expected: int | None) -> None:
    if outcome == "absorbed":
        attacked.commit()
        return
    with pytest.raises(BarrierBlockedError, match=f"BLOCKED: .*{AMOUNT}.*`airflow-barrier barrier resolve"):
        attacked.commit()
    assert attacked.meta.barriers.get("shopping", UNDER_WAY).state is BarrierState.BLOCKED
    attacked.others_are_at(UNDER_WAY - 1)
    attacked.read()
    with pytest.raises(BarrierBlockedError, match="airflow-barrier barrier resolve"):
        attacked.commit()
    theirs = main_or_none(attacked)
    if way == "adopt-theirs":
        decide(attacked, Decision.ADOPT_THEIRS)
        attacked.oracle[UNDER_WAY] = THEIRS[hand]
        attacked.oracle[NEXT] = [*THEIRS[hand], 100 * NEXT]
    elif way == "keep-ours":
        decide(attacked, Decision.KEEP_OURS)
    else:
        mend(attacked, way, expected)
        decide(attacked, Decision.KEEP_OURS)
    attacked.read()
    attacked.commit()
    if way == "adopt-theirs":
        assert attacked.main() == theirs, "theirs stands"
    elif way == "keep-ours":
        assert set_aside(attacked) == theirs, "theirs is kept"
        assert attacked.main() != theirs


def finish(attacked: Attacked) -> None:
    """Barrier 3 is COMMIT, and barrier 4 goes through as on any other day."""
    assert attacked.meta.barriers.get("shopping", UNDER_WAY).state is BarrierState.COMMIT
    attacked.read()
    barrier = attacked.shop.open(NEXT)
    for job in ("load", "amount", "price"):
        attempt = attacked.meta.attempts.current("shopping", NEXT, job)
        if attempt is None or attempt.state.value != "PROCESSED":
            attacked.shop.process(barrier, job, epoch(NEXT))
    attacked.shop.commit(barrier)
    attacked.read()
    attacked.check_mains(NEXT)


def process_and_commit(attacked: Attacked) -> None:
    """Stage the table if it is not staged yet, and commit."""
    if attacked.meta.barriers.get("shopping", UNDER_WAY).state is BarrierState.OPEN:
        attacked.shop.process(attacked.barrier, "amount", epoch(UNDER_WAY))
    attacked.commit()


def mend(attacked: Attacked, way: str, expected: int | None) -> None:
    """What the error says that a person should do."""
    if way == "set main back":
        assert expected is not None
        attacked.hands.set_main_back(expected)
    elif way == "restage":
        attacked.shop.process(attacked.barrier, "amount", epoch(UNDER_WAY), generation="cleared")
    else:
        getattr(attacked.hands, way)()


def decide(attacked: Attacked, decision: Decision) -> None:
    resolve_table(
        attacked.shop.deployment, "shopping", UNDER_WAY, AMOUNT, decision, reason="looked at it", actor="alice"
    )


def main_or_none(attacked: Attacked) -> int | None:
    try:
        return attacked.main()
    except MissingTableError:
        return None


def set_aside(attacked: Attacked) -> int:
    return attacked.hands.table.refs()[set_aside_tag("shopping", UNDER_WAY, 0)].snapshot_id


def test_every_hand_is_in_the_matrix() -> None:
    mending = {"set_main_back", "rename_back", "register_again", "free_tag"}
    known = {name for name, value in vars(Hands).items() if callable(value) and not name.startswith("_")} - mending
    assert {cell[0] for cell in CELLS} == known
    places = {(hand, moment) for hand, moment, _, _ in CELLS}
    assert len(places) == len(known) * len(MOMENTS), "no cell is without a way out"
    report(f"foreign hands: {len(known)} hands at {len(MOMENTS)} moments, {len(CELLS)} ways through")
