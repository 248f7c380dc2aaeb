"""Which snapshots of a table may go, as its metadata document tells."""

from __future__ import annotations

from typing import Any

from airflow_barrier.tables._expiry import snapshot_verdicts

WINDOW = "barrier_shop_b6_r0"


def document(parents: dict[int, int | None], refs: dict[str, tuple[str, int]]) -> dict[str, Any]:
    """Snapshots by their parents, and refs as (type, snapshot)."""
    return {
        "snapshots": [
            {"snapshot-id": number} | ({} if parent is None else {"parent-snapshot-id": parent})
            for number, parent in parents.items()
        ],
        "refs": {name: {"type": kind, "snapshot-id": number} for name, (kind, number) in refs.items()},
    }


def line(length: int) -> dict[int, int | None]:
    return {number: number - 1 or None for number in range(1, length + 1)}


def gone(document: dict[str, Any], window_tag: str | None = WINDOW) -> list[int]:
    return [verdict.snapshot_id for verdict in snapshot_verdicts(document, window_tag) if not verdict.keep]


def test_the_recent_window_keeps_every_step_and_beyond_it_what_has_a_tag() -> None:
    table = document(line(9), {"main": ("branch", 9), WINDOW: ("tag", 6), "barrier_shop_b2_r0": ("tag", 2)})
    assert gone(table) == [1, 3, 4, 5]
    reasons = {verdict.snapshot_id: verdict.reason for verdict in snapshot_verdicts(table, WINDOW)}
    assert reasons == {
        1: "no ref needs it any more",
        2: "tag barrier_shop_b2_r0",
        3: "no ref needs it any more",
        4: "no ref needs it any more",
        5: "no ref needs it any more",
        6: f"tag {WINDOW}",
        7: "a step of main in the recent window",
        8: "a step of main in the recent window",
        9: "a step of main in the recent window",
    }


def test_a_branch_keeps_its_steps_and_the_base_that_it_left_main_at() -> None:
    parents = {**line(9), 20: 3, 21: 20, 22: 21}
    table = document(parents, {"main": ("branch", 9), WINDOW: ("tag", 6), "audit": ("branch", 22)})
    assert gone(table) == [1, 2, 4, 5]


def test_a_branch_of_another_root_keeps_all_it_has() -> None:
    parents = {**line(9), 20: None, 21: 20}
    table = document(parents, {"main": ("branch", 9), WINDOW: ("tag", 6), "copy": ("branch", 21)})
    assert gone(table) == [1, 2, 3, 4, 5]


def test_a_branch_that_is_a_barrier_ahead_keeps_nothing_of_main_beyond_the_window() -> None:
    parents = {**line(9), 10: 9, 11: 10}
    table = document(parents, {"main": ("branch", 9), WINDOW: ("tag", 6), "barrier_shop_b11_r0_a4": ("branch", 11)})
    assert gone(table) == [1, 2, 3, 4, 5]


def test_what_a_dropped_attempt_branch_left_goes() -> None:
    table = document({**line(9), 20: 8}, {"main": ("branch", 9), WINDOW: ("tag", 6)})
    assert gone(table) == [1, 2, 3, 4, 5, 20]


def test_a_table_without_the_windows_tag_keeps_all_of_main() -> None:
    """It joined later than that barrier, or had no rows then."""
    table = document({**line(9), 20: 3}, {"main": ("branch", 9)})
    assert gone(table) == [20]
    assert gone(table, None) == [20]


def test_a_window_that_main_did_not_pass_keeps_all_of_main() -> None:
    table = document({**line(9), 20: 3}, {"main": ("branch", 9), WINDOW: ("tag", 20)})
    assert gone(table) == []


def test_where_a_revision_led_main_another_way_both_revisions_tags_and_the_open_branches_hold() -> None:
    """Barriers 4 to 8 were computed again (24 to 28), and revision 9 is computing 7 and 8 once more (37, 38)."""
    parents = {**line(9), 24: 3, 25: 24, 26: 25, 27: 26, 28: 27, 37: 26, 38: 37, 39: 28}
    refs = {
        "main": ("branch", 28),
        WINDOW: ("tag", 6),
        "barrier_shop_b6_r7": ("tag", 26),
        "barrier_shop_b8_r0": ("tag", 8),
        "barrier_shop_b8_r7": ("tag", 28),
        "barrier_shop_b7_r9_a70": ("branch", 37),
        "barrier_shop_b8_r9_a71": ("branch", 38),
        "barrier_shop_b9_r7_a60": ("branch", 39),
    }
    table = document(parents, refs)
    assert gone(table, "barrier_shop_b6_r7") == [1, 2, 3, 4, 5, 7, 9, 24, 25]
    assert gone(table, WINDOW) == [4, 5, 7, 9], "main does not lead to that one: all of main stays"
    on_the_old_line = {**refs, "barrier_shop_b9_r0_a50": ("branch", 9)}
    assert gone(document(parents, on_the_old_line), "barrier_shop_b6_r7") == [1, 2, 24, 25]


def test_a_line_that_was_computed_anew_shares_nothing_with_the_old_one() -> None:
    parents = {**line(4), 20: None, 21: 20, 22: 21, 30: None, 31: 30}
    refs = {
        "main": ("branch", 22),
        "barrier_shop_b4_r0": ("tag", 4),
        "barrier_shop_b3_r7": ("tag", 21),
        "barrier_shop_b4_r8_a9": ("branch", 31),
    }
    assert gone(document(parents, refs), "barrier_shop_b3_r7") == [1, 2, 3, 20]


def test_a_table_without_snapshots_has_nothing_to_decide() -> None:
    assert snapshot_verdicts({"refs": {}}, WINDOW) == []
