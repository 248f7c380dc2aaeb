"""An unchanged job's tables before it starts, and what its attempt branches have to show when it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Ready, begin, close, closing_uri
from airflow_barrier.protocol.errors import (
    NotClosedError,
    SilentSinkError,
    StagedTableError,
    UnguardedError,
    WapDisabledError,
)
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import AttemptState, BarrierState
from tests.support.shop import AMOUNT, COLUMNS, SHOPPING, Shop, make_shop

SPARK = {"engine-name": "spark", "engine-version": "4.1.3", "spark.app.id": "app-1", "airflow-barrier.guard": "1"}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    url = f"sqlite:///{tmp_path}/barrier.db"
    shop = make_shop(Settings(url, url, (tmp_path / "warehouse").as_uri()))
    yield shop
    shop.deployment.close()


@pytest.fixture
def ready(shop: Shop) -> Ready:
    shop.deployment.tables.take_in([SHOPPING])
    ready = ask(shop, shop.open(1))
    assert isinstance(ready, Ready)
    return ready


def ask(shop: Shop, barrier: Barrier) -> object:
    return begin(shop.deployment, barrier, "load", request_key="k", generation="g0", actor="test", by_branch=True)


def write(shop: Shop, ready: Ready, **properties: str) -> None:
    """As a Spark driver with the conf would."""
    table = shop.deployment.tables.load(SHOPPING)
    rows = pa.Table.from_pylist([dict.fromkeys(COLUMNS[SHOPPING], 1)], table.schema().as_arrow())
    properties = {**ready.spec.stamp.properties(), **SPARK, **{k.replace("_", "-"): v for k, v in properties.items()}}
    table.append(rows, snapshot_properties=properties, branch=ready.spec.branch)


def end(shop: Shop, ready: Ready) -> Barrier:
    return close(shop.deployment, ready.attempt.attempt_id, actor="test", by_branch=True)


def test_the_tables_tell_what_an_unchanged_job_staged(shop: Shop, ready: Ready) -> None:
    write(shop, ready)
    write(shop, ready)
    assert end(shop, ready).state is BarrierState.OPEN
    attempt = shop.deployment.meta.attempt(ready.attempt.attempt_id)
    assert attempt.state is AttemptState.PROCESSED
    assert shop.total(SHOPPING, attempt.staged[SHOPPING].snapshot_id) == 2


def test_nothing_is_begun_without_wap(shop: Shop) -> None:
    barrier = shop.open(1)
    with pytest.raises(WapDisabledError, match=r"ALTER TABLE lake\.shop\.shopping SET TBLPROPERTIES"):
        ask(shop, barrier)
    assert shop.deployment.tables.load(SHOPPING).refs() == {}
    assert [each.state for each in shop.deployment.meta.attempts("shopping", 1)] == [AttemptState.ABORTED]


def test_the_sources_need_wap_as_well(shop: Shop) -> None:
    barrier = shop.open(1)
    shop.process(barrier, "load", [{"amount": 1, "price": 1}])
    shop.deployment.tables.take_in([AMOUNT])
    with pytest.raises(WapDisabledError, match=r"missing on shop\.shopping:"):
        begin(shop.deployment, barrier, "amount", request_key="k", generation="g0", actor="test", by_branch=True)


def test_a_sink_without_output_is_not_taken_as_unchanged(shop: Shop, ready: Ready) -> None:
    with pytest.raises(SilentSinkError, match="an empty append will do"):
        end(shop, ready)
    assert shop.deployment.meta.attempt(ready.attempt.attempt_id).state is AttemptState.ABORTED


def test_a_driver_that_reads_its_spec_and_died_is_not_an_unchanged_job(shop: Shop, ready: Ready) -> None:
    write(shop, ready)
    shop.deployment.tables.write_text(f"{closing_uri(shop.deployment, ready.attempt)}.partial", "")
    with pytest.raises(NotClosedError, match="died before its last write"):
        end(shop, ready)


def test_what_is_no_unchanged_job_needs_a_record(shop: Shop, ready: Ready) -> None:
    write(shop, ready)
    with pytest.raises(NotClosedError, match="expected a closing record"):
        close(shop.deployment, ready.attempt.attempt_id, actor="test")


def test_a_driver_without_the_guard_is_refused(shop: Shop, ready: Ready) -> None:
    table = shop.deployment.tables.load(SHOPPING)
    rows = pa.Table.from_pylist([dict.fromkeys(COLUMNS[SHOPPING], 1)], table.schema().as_arrow())
    table.append(rows, snapshot_properties=ready.spec.stamp.properties(), branch=ready.spec.branch)
    with pytest.raises(UnguardedError, match="found no sign of it"):
        end(shop, ready)


def test_a_second_driver_of_the_same_attempt_is_noticed(shop: Shop, ready: Ready) -> None:
    write(shop, ready)
    write(shop, ready, **{"spark.app.id": "app-2"})
    with pytest.raises(StagedTableError, match="found app-1, app-2"):
        end(shop, ready)


def test_a_spark_that_is_too_old_is_named(shop: Shop, ready: Ready) -> None:
    write(shop, ready, **{"engine-version": "3.5.6"})
    with pytest.raises(UnguardedError, match=r"Spark 3\.5\.6 wrote shop\.shopping"):
        end(shop, ready)
