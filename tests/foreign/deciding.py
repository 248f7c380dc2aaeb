"""Blocking barrier 3 by hand, and deciding about it."""

from __future__ import annotations

import pytest

from airflow_barrier.coordinator.resolving import Resolved, resolve_table
from airflow_barrier.protocol.errors import BarrierBlockedError
from airflow_barrier.protocol.states import BarrierState, Decision
from tests.foreign.attacked import UNDER_WAY, Attacked
from tests.foreign.hands import Hands
from tests.support.shop import AMOUNT

KEEP, ADOPT = Decision.KEEP_OURS, Decision.ADOPT_THEIRS


def block(attacked: Attacked, hand: str = "append", hands: Hands | None = None) -> BarrierBlockedError:
    with (
        attacked.interrupted("committing", getattr(hands or attacked.hands, hand)),
        pytest.raises(BarrierBlockedError) as blocked,
    ):
        attacked.commit()
    return blocked.value


def decide(attacked: Attacked, decision: Decision, table: str = AMOUNT) -> Resolved:
    return resolve_table(
        attacked.shop.deployment, "shopping", UNDER_WAY, table, decision, reason="looked at it", actor="alice"
    )


def state(attacked: Attacked, barrier_id: int = UNDER_WAY) -> BarrierState:
    return attacked.meta.barriers.get("shopping", barrier_id).state


def staged(attacked: Attacked, table: str = AMOUNT) -> int | None:
    return next(p.snapshot_id for p in attacked.meta.barriers.progress("shopping", UNDER_WAY) if p.table == table)
