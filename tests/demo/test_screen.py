"""A claim of the demo that did not hold says so; the demo's exit code follows from that."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.records import Attempt, Barrier, BarrierKind, StagedTable
from airflow_barrier.protocol.states import AttemptState, BarrierState
from demo.killing import Aftermath, Killed
from demo.progress import Reads
from demo.reports import Delivered
from demo.screen import Claim, claims, lines_of
from demo.seeds import SeedsExample
from demo.verify import Equality
from tests.support.runs import run_of

_OPENED = datetime(2026, 1, 1, tzinfo=timezone.utc)
_TABLE = "shop.user_item_amount"
_TORN = {"at": _OPENED.isoformat(), "items": {"shopping": 3, "amount": 2}, "money": {"a": "1"}, "pairs": {"a": 1}}


def _barrier(number: int) -> Barrier:
    return Barrier(
        "shopping",
        number,
        0,
        _OPENED,
        BarrierState.COMMIT,
        number - 1,
        1,
        BarrierKind.EPOCH,
        run_of("run"),
        "test",
        opened_at=_OPENED,
        precommit_at=_OPENED + timedelta(seconds=9),
        commit_at=_OPENED + timedelta(seconds=10),
    )


def _attempt(number: int, state: AttemptState, snapshot: int | None) -> Attempt:
    staged = {_TABLE: StagedTable(_TABLE, snapshot)} if snapshot is not None else {}
    return Attempt(
        attempt_id=number,
        topology="shopping",
        barrier_id=2,
        computed_in=0,
        job="amount",
        state=state,
        request_key="task",
        generation="first",
        incarnation="incarnation",
        requested_at=_OPENED,
        staged=staged,
    )


def _seen(uncommitted: str, committed: str, repeatable: str) -> dict[Level, Decimal]:
    return dict(zip(Level, map(Decimal, (uncommitted, committed, repeatable)), strict=True))


def _run(**changed: Any) -> list[Claim]:
    new = "8.33333"
    facts: dict[str, Any] = {
        "barriers": [_barrier(1), _barrier(2)],
        "wanted": 2,
        "reads": {"plain": Reads(9, 4, _TORN), "barrier": Reads(8, 0, None)},
        "aftermath": Aftermath(
            Killed(1, 7, _TABLE, staged=70),
            (_attempt(7, AttemptState.FENCED, None), _attempt(8, AttemptState.PROCESSED, 80)),
            published=80,
        ),
        "equality": Equality(tables=6, barriers=2, rows=100, differences=()),
        "delivered": Delivered("PostgreSQL", 50, ()),
        "deliveries": [1, 2],
        "reports": Reads(7, 0, None),
        "plain_differences": [],
        "seeds": SeedsExample(
            _seen("25.00000", "10.00000", "10.00000"), _seen(new, new, "10.00000"), _seen(new, new, new)
        ),
    }
    return claims(**{**facts, **changed})


def test_a_good_run_holds_and_shows_its_numbers() -> None:
    verdict = _run()
    assert all(claim.holds for claim in verdict)
    text = "\n".join(lines_of(verdict))
    for number in (
        "2 barriers delivered",
        "0 torn of 7",
        "4 torn of    9",
        "0 torn of    8",
        "shopping 3, amount 2",
        "12 of 12 equal",
        "25.00000",
        "10.0 s",
    ):
        assert number in text


def test_files_have_no_reader_that_joins_them() -> None:
    assert all(claim.holds for claim in _run(reports=None))


@pytest.mark.parametrize(
    "changed",
    [
        {"reads": {"plain": Reads(9, 4, _TORN), "barrier": Reads(8, 1, _TORN)}},
        {"reads": {"plain": Reads(9, 0, None), "barrier": Reads(8, 0, None)}},
        {"reads": {"plain": Reads(9, 4, _TORN), "barrier": Reads(0, 0, None)}},
        {"equality": Equality(6, 2, 100, ("barrier 1: shop.products: 1 rows missing",))},
        {"equality": Equality(6, 1, 100, ())},
        {"delivered": Delivered("PostgreSQL", 50, ("prices: 1 rows missing",))},
        {"deliveries": [1]},
        {"deliveries": []},
        {"reports": Reads(7, 1, None)},
        {"reports": Reads(0, 0, None)},
        {"plain_differences": ["plain.products: 1 rows missing"]},
        {"barriers": [_barrier(1), replace(_barrier(2), commit_at=None)]},
        {
            "aftermath": Aftermath(
                Killed(1, 7, _TABLE, staged=70),
                (_attempt(7, AttemptState.FENCED, None), _attempt(8, AttemptState.PROCESSED, 80)),
                published=70,
            )
        },
        {"aftermath": Aftermath(Killed(1, 7, _TABLE, 70), (_attempt(7, AttemptState.PROCESSED, 70),), 70)},
        {"seeds": SeedsExample(_seen("10", "10", "10"), _seen("10", "10", "10"), _seen("10", "10", "10"))},
    ],
)
def test_what_does_not_hold_is_said(changed: dict[str, Any]) -> None:
    assert [claim.holds for claim in _run(**changed)].count(False) == 1
