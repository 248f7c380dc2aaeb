"""CheckOperator on a real Spark, called as Airflow calls it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time.comms import GetTaskStates, TaskStatesResult
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_barrier.operators.check import CheckOperator
from airflow_barrier.protocol.errors import CheckFailedError
from airflow_barrier.protocol.states import BarrierState
from tests.support.shop import MONDAY, PRICE, SHOPPING, Shop
from tests.support.spark import APART
from tests.support.supervising import KeptXComs, supervised

GOOD, BAD = [{"amount": 1, "price": 1}], [{"amount": 1, "price": -7}, {"amount": 1, "price": 3}]
NEGATIVE = f"SELECT price FROM {APART}.{PRICE} WHERE price < 0"


class Answers(KeptXComs):
    """For a task that asks for itself in other runs, too: it has run in none."""

    def __call__(self, msg: Any) -> Any:
        return TaskStatesResult(task_states={}) if isinstance(msg, GetTaskStates) else super().__call__(msg)


def check(day: int, sql: str = NEGATIVE) -> Any:
    """One try of the check in the run of a day."""
    operator = CheckOperator(task_id="check", topology="shopping", check="no negative prices", sql=sql)
    end = MONDAY + timedelta(days=day)
    run = {"run_type": SimpleNamespace(value="scheduled"), "logical_date": end, "data_interval_end": end}
    ti = {"dag_id": "shopping_dag", "run_id": f"day-{day}", "task_id": "check", "try_number": 1, "map_index": -1}
    ti["start_date"] = datetime.now(timezone.utc)
    context = {
        "ti": SimpleNamespace(**ti, get_task_states=RuntimeTaskInstance.get_task_states),
        "dag_run": SimpleNamespace(**run, conf={}, clear_number=0, partition_key=None),
    }
    with supervised(Answers()):
        return operator.execute(context)  # type: ignore[arg-type]


def test_what_is_staged_wrong_is_named_and_not_published(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    barrier = shop.open(5)
    shop.process(barrier, "load", GOOD)
    shop.process(barrier, "amount", GOOD)
    shop.process(barrier, "price", BAD)
    with pytest.raises(CheckFailedError) as failed:
        check(5)
    said = str(failed.value)
    assert said.startswith(f"{barrier}: expected that check 'no negative prices' finds no rows. Mend the job that")
    assert said.endswith("airflow-barrier barrier abort shopping 5. Found 1 row:\n{'price': -7}")
    # readers are where they were, and nobody holds anything
    held_up = shop.deployment.meta.barriers.get("shopping", 5)
    assert held_up.state is BarrierState.PRECOMMIT
    assert held_up.reason == "check 'no negative prices' found 1 row: {'price': -7}"
    assert shop.main_totals()[PRICE] == 4
    assert shop.deployment.meta.leases.of("shopping") == []

    shop.process(barrier, "price", GOOD, generation="cleared")
    assert check(5) == 5
    assert f"{barrier} has passed check no negative prices: no rows" in capsys.readouterr().out
    assert shop.commit(barrier).barrier.reason is None
    assert shop.main_totals()[PRICE] == 5
    # cleared, or run by a plain backfill, when it is published
    assert check(5) == 5
    assert f"Nothing to check: {barrier} is COMMIT" in capsys.readouterr().out


def test_of_many_rows_ten_are_shown(shop: Shop) -> None:
    shop.process_all(shop.open(5), [{"amount": 1, "price": -each} for each in range(1, 13)])
    with pytest.raises(CheckFailedError, match="Found more than 10 rows:") as failed:
        check(5, f"SELECT p.price FROM {APART}.{PRICE} p JOIN {APART}.{SHOPPING} s USING (price) WHERE price < 0")
    assert str(failed.value).count("{'price': -") == 10
