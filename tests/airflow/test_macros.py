"""The macros, rendered by Airflow's own template engine, as the plugin registers them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.execution_time.context import MacrosAccessor
from packaging.version import Version

from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.hooks.features import AIRFLOW
from airflow_barrier.protocol.errors import LeaseLostError, NotReadableYetError
from tests.support.shop import AMOUNT, PRICE, Shop, make_shop
from tests.support.supervising import supervised

QUERY = f"SELECT * FROM {AMOUNT} JOIN {PRICE} ON true"


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Shop]:
    """Barrier 1 is COMMIT, and the connection is the default one."""
    extras = {"conn_type": "barrier", "extra": {"warehouse": str(tmp_path), "consistency": "read_committed"}}
    monkeypatch.setenv("AIRFLOW_CONN_BARRIER_DEFAULT", json.dumps(extras))
    shop = make_shop(BarrierHook().get_settings())
    bring(shop, 1)
    yield shop
    shop.deployment.close()
    BarrierHook().get_deployment(new=True).close()


def bring(shop: Shop, day: int, commit: bool = True) -> None:
    barrier = shop.open(day)
    shop.process_all(barrier, [{"amount": 25, "price": 250}])
    if commit:
        shop.commit(barrier)


class Dashboard(BaseOperator):
    """Of somebody else's, and knows nothing of barriers."""

    template_fields = ("statement", "arguments")

    def __init__(self, statement: str, arguments: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.statement = statement
        self.arguments = arguments


def rendered(statement: str, arguments: Any = None, try_number: int = 1, run_id: str = "today") -> tuple[str, Any]:
    """The fields of a task that is about to run."""
    with supervised(lambda _: None):
        return looked_at(statement, arguments, try_number, run_id)


def looked_at(statement: str, arguments: Any = None, try_number: int = 1, run_id: str = "today") -> tuple[str, Any]:
    """The fields as `airflow tasks render` shows them: the context is that of a task, and none runs."""
    if Version("3.2") <= AIRFLOW:
        from airflow.sdk.plugins_manager import integrate_macros_plugins
    else:
        from airflow.plugins_manager import integrate_macros_plugins
    integrate_macros_plugins()
    with DAG("selling"):
        task = Dashboard(task_id="show", statement=statement, arguments=arguments)
    ti = SimpleNamespace(dag_id="selling", run_id=run_id, task_id="show", map_index=-1, try_number=try_number)
    context: Any = {"ti": ti, "macros": MacrosAccessor()}
    task.render_template_fields(context)
    return task.statement, task.arguments


def test_text_for_other_engines_is_held_in_the_name_of_the_task(shop: Shop) -> None:
    snapshots = shop.deployment.tables.mains([AMOUNT, PRICE])
    statement, arguments = rendered(
        "{{ macros.barrier.sql('shopping', '" + QUERY + "', dialect='trino', hold=3600) }}",
        {
            "tag": "{{ macros.barrier.tag('shopping', hold=60) }}",
            "warehouse": "{{ macros.barrier.catalog('shopping', hold=60) }}",
            "id": "{{ macros.barrier.snapshots('shopping', hold=60)['shop.user_item_price'] }}",
            "barrier": "{{ macros.barrier.barrier_id('shopping', hold=60, level='repeatable_read') }}",
        },
    )
    assert statement == (
        f"SELECT * FROM {AMOUNT} FOR VERSION AS OF {snapshots[AMOUNT]} "
        f"JOIN {PRICE} FOR VERSION AS OF {snapshots[PRICE]} ON true"
    )
    assert arguments == {
        "tag": "barrier_shopping_b1_r0",
        "warehouse": "shopping@b1.r0",
        "id": str(snapshots[PRICE]),
        "barrier": "1",
    }
    held, tagged = shop.deployment.meta.leases.of("shopping")  # at the connection's level, and at the tag's
    assert {held.holder, tagged.holder} == {"selling/today/show#1"}
    assert timedelta(minutes=59) < held.expires_at - held.granted_at < timedelta(minutes=61)
    assert shop.deployment.meta.expiry.expire("shopping", [1], "test") == []


def test_text_says_what_the_engine_calls_the_catalog(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    query = f"SELECT * FROM iceberg.{PRICE}, rates"
    with pytest.raises(AirflowFailException, match=f"in catalog lake, found iceberg.{PRICE}, called as one of them"):
        rendered("{{ macros.barrier.sql('shopping', '" + query + "', dialect='trino', hold=60) }}", run_id="named")
    snapshot = shop.deployment.tables.mains([PRICE])[PRICE]
    statement, _ = rendered(
        "{{ macros.barrier.sql('shopping', '" + query + "', dialect='athena', hold=60, catalog='iceberg') }}",
        run_id="named",
    )
    assert statement == f"SELECT * FROM iceberg.{PRICE} FOR VERSION AS OF {snapshot}, rates"
    assert "since they are not tables of topology shopping: iceberg.rates" in caplog.text


def test_all_macros_of_a_try_speak_of_one_barrier_and_the_next_try_asks_anew(shop: Shop) -> None:
    template = "{{ macros.barrier.barrier_id('shopping', hold=3600) }}"
    assert rendered(template, run_id="twice")[0] == "1"
    bring(shop, 2, commit=False)
    assert rendered(template, run_id="twice")[0] == "1"
    assert rendered(template, run_id="twice", try_number=2)[0] == "2"
    assert rendered("{{ macros.barrier.barrier_id('shopping', hold=3600, at='1') }}", try_number=2)[0] == "1"


def test_a_hold_that_was_lost_is_retried(shop: Shop) -> None:
    given = "{{ macros.barrier.barrier_id('shopping', hold=60) }}"
    assert rendered(given, run_id="lost")[0] == "1"
    for lease in shop.deployment.meta.leases.of("shopping"):
        shop.deployment.meta.leases.release(lease.lease_id)
    with pytest.raises(LeaseLostError, match="found that it has ended"):
        rendered(given.replace("60", "3600"), run_id="lost")
    assert rendered(given, run_id="lost", try_number=2)[0] == "1"


def test_what_cannot_be_is_not_retried_and_what_comes_is(shop: Shop) -> None:
    for arguments, message in (
        ("'shopping', hold=604801", r"at most 604800 seconds \(7 days\) to live, found 604801"),
        ("'shopping', hold=60, at='None'", "at: expected a barrier's id"),
        ("'shopping', hold=60, at=77", "77"),
        ("'shopping', hold=60, level='dirty'", "consistency level 'dirty'"),
        ("'bakery', hold=60", "bakery"),
    ):
        with pytest.raises(AirflowFailException, match=message):
            rendered("{{ macros.barrier.snapshots(" + arguments + ") }}", run_id="wrong")
    with pytest.raises(TypeError, match="hold"):
        rendered("{{ macros.barrier.tag('shopping') }}", run_id="wrong")
    bring(shop, 2, commit=False)
    with pytest.raises(NotReadableYetError, match="expected COMMIT"):
        rendered("{{ macros.barrier.tag('shopping', hold=60, at=2) }}", run_id="wrong")
    assert shop.deployment.meta.leases.of("shopping") == []


def test_nothing_is_held_for_a_template_that_is_only_looked_at(shop: Shop) -> None:
    every = {
        "sql": "{{ macros.barrier.sql('shopping', '" + QUERY + "', dialect='trino', hold=3600) }}",
        "tag": "{{ macros.barrier.tag('shopping', hold=60) }}",
        "id": "{{ macros.barrier.snapshots('shopping', hold=60)['shop.user_item_price'] }}",
        "barrier": "{{ macros.barrier.barrier_id('shopping', hold=60, at='1') }}",
    }
    before = len(shop.deployment.meta.audit.newest("shopping"))
    _, seen = looked_at("", every, run_id="looked at")
    assert shop.deployment.meta.leases.of("shopping") == []
    assert len(shop.deployment.meta.audit.newest("shopping")) == before
    with pytest.raises(AirflowFailException, match="at most 604800 seconds"):
        looked_at("{{ macros.barrier.tag('shopping', hold=604801) }}")
    assert rendered("", every, run_id="looked at")[1] == seen
    assert {lease.holder for lease in shop.deployment.meta.leases.of("shopping")} == {"selling/looked at/show#1"}
