"""Two databases: the tables are published, and the committer dies before it can write COMMIT down."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_barrier.coordinator.resolving import resolve_table
from airflow_barrier.protocol.errors import BarrierBlockedError, ForeignWriteError
from airflow_barrier.protocol.states import BarrierState, Decision
from tests.foreign.attacked import NEXT, UNDER_WAY, Attacked, Template, epoch
from tests.support.shop import AMOUNT


class Died(Exception):
    """The committer's process is gone."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return Template(tmp_path_factory.mktemp("apart"), apart=True)


@pytest.fixture
def published(template: Template) -> Iterator[Attacked]:
    """Barrier 3 is COMMITTING, and published."""

    def die() -> None:
        raise Died

    with template.put_back("staged") as attacked:
        assert not attacked.shop.deployment.shares_database
        with attacked.interrupted("publishing", die), pytest.raises(Died):
            attacked.commit()
        assert attacked.meta.barriers.get("shopping", UNDER_WAY).state is BarrierState.COMMITTING
        attacked.check_mains(UNDER_WAY)
        yield attacked


@pytest.mark.parametrize("hand", ["append", "compact", "expire", "drop_branches", "drop_column"])
def test_what_comes_on_top_of_a_publish_does_not_block_it(published: Attacked, hand: str) -> None:
    getattr(published.hands, hand)()
    published.commit()
    assert published.meta.barriers.get("shopping", UNDER_WAY).state is BarrierState.COMMIT
    published.read()
    if hand == "append":
        following = published.shop.open(NEXT)
        published.shop.process(following, "load", epoch(NEXT))
        with pytest.raises(ForeignWriteError, match=AMOUNT):
            published.shop.process(following, "amount", epoch(NEXT))
    else:
        published.shop.commit(published.stage_next())
        published.check_mains(NEXT)


@pytest.mark.parametrize("decision", list(Decision))
def test_a_publish_that_was_rolled_back_blocks(published: Attacked, decision: Decision) -> None:
    ours = published.main()
    published.hands.rollback()
    with pytest.raises(BarrierBlockedError, match=f"main has been at snapshot {ours} and has left it"):
        published.commit()
    resolve_table(
        published.shop.deployment, "shopping", UNDER_WAY, AMOUNT, decision, reason="looked at it", actor="alice"
    )
    if decision is Decision.ADOPT_THEIRS:
        published.oracle[UNDER_WAY], published.oracle[NEXT] = [100, 200], [100, 200, 400]
    published.commit()
    assert published.main() != ours, "main never returns to an id that it left"
    published.read()
    published.check_mains(UNDER_WAY)
    published.shop.commit(published.stage_next())
    published.check_mains(NEXT)
