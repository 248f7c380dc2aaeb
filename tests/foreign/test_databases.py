"""BLOCKED and both ways out on PostgreSQL, and what a recovered MetaService makes of a decision."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_barrier.coordinator.recovering import recover
from airflow_barrier.coordinator.resolving import resolve_table
from airflow_barrier.protocol.errors import BarrierBlockedError
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import BarrierState, Decision
from tests.foreign.attacked import UNDER_WAY, Attacked, Template, epoch
from tests.foreign.hands import Hands
from tests.support.deployments import settings_on
from tests.support.postgresql import PostgreSQL
from tests.support.shop import AMOUNT, Shop, make_shop


def block(shop: Shop, barrier: Barrier, hand: Callable[[], None]) -> None:
    """The hand acts between the decision and the publish."""
    begin_commit = shop.deployment.meta.publishing.begin

    def begun(*args: Any) -> Barrier:
        decided = begin_commit(*args)
        hand()
        return decided

    shop.deployment.meta.publishing.begin = begun  # type: ignore[method-assign]
    with pytest.raises(BarrierBlockedError, match=AMOUNT):
        shop.commit(barrier)
    del shop.deployment.meta.publishing.begin  # type: ignore[method-assign]


def resolve(shop: Shop, barrier: Barrier, decision: Decision) -> None:
    resolve_table(
        shop.deployment, "shopping", barrier.barrier_id, AMOUNT, decision, reason="looked at it", actor="alice"
    )


def amounts(shop: Shop) -> list[int]:
    return sorted(shop.deployment.tables.load(AMOUNT).scan().to_arrow().column("amount").to_pylist())


@pytest.mark.parametrize("kind", ["postgresql", "postgresql apart"])
def test_both_ways_out(kind: str, tmp_path: Path, postgresql: PostgreSQL) -> None:
    with settings_on(kind, tmp_path, postgresql) as settings:
        shop = make_shop(settings)
        shop.process_all(first := shop.open(1), epoch(1))
        shop.commit(first)
        shop.process_all(second := shop.open(2), epoch(2))
        block(shop, second, Hands(shop, second, first).append)
        resolve(shop, second, Decision.KEEP_OURS)
        shop.commit(second)
        assert amounts(shop) == [100, 200]
        shop.process_all(third := shop.open(3), epoch(3))
        shop.process_all(shop.open(4), epoch(4))
        block(shop, third, Hands(shop, third, second).append)
        resolve(shop, third, Decision.ADOPT_THEIRS)
        shop.commit(third)
        assert amounts(shop) == [7, 100, 200]
        assert shop.deployment.meta.barriers.get("shopping", 4).state is BarrierState.OPEN
        shop.deployment.close()


@pytest.mark.parametrize("committed", [True, False], ids=["published", "decided"])
@pytest.mark.parametrize("decision", list(Decision), ids=lambda decision: decision.value)
def test_a_decision_survives_the_loss_of_the_metaservice_or_is_asked_for_again(
    tmp_path_factory: pytest.TempPathFactory, decision: Decision, committed: bool
) -> None:
    template = Template(tmp_path_factory.mktemp("lost"), apart=True)
    with template.put_back("staged") as attacked:
        block(attacked.shop, attacked.barrier, attacked.hands.append)
        resolve(attacked.shop, attacked.barrier, decision)
        if committed:
            attacked.commit()
    (template.live / "meta.db").unlink()
    with template.again() as shop:
        if committed:
            recover(shop.deployment, "shopping", actor="alice", reason="test")
        else:
            with pytest.raises(BarrierBlockedError, match=AMOUNT):
                recover(shop.deployment, "shopping", actor="alice", reason="test")
            barrier = shop.deployment.meta.barriers.get("shopping", UNDER_WAY)
            resolve(shop, barrier, decision)
            shop.commit(barrier)
        attacked = Attacked(shop)
        if decision is Decision.ADOPT_THEIRS:
            attacked.oracle[UNDER_WAY], attacked.oracle[4] = [100, 200, 7], [100, 200, 7, 400]
        attacked.check_mains(UNDER_WAY)
        shop.commit(attacked.stage_next())
        attacked.check_mains(4)
