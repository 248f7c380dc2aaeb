"""An unchanged job's tables before it starts, and what its attempt branches have to show when it has ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_barrier.coordinator.journal import check_lead, entry_uri
from airflow_barrier.coordinator.recovering import recover
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close, closing_uri
from airflow_barrier.protocol.errors import (
    ForeignWriteError,
    NotClosedError,
    SilentOutletError,
    StagedTableError,
    UnguardedError,
    WapDisabledError,
)
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import AttemptState, BarrierState
from airflow_barrier.spark.unchanged import GUARD_MARK, GUARD_PROMISE
from tests.support.shop import AMOUNT, COLUMNS, SHOPPING, Shop, make_shop

SPARK = {"engine-name": "spark", "engine-version": "4.1.3", "spark.app.id": "app-1", GUARD_MARK: GUARD_PROMISE}


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


def ask(shop: Shop, barrier: Barrier, generation: str = "g0") -> object:
    return begin(
        shop.deployment, barrier, "load", Asking(request_key="k", generation=generation, actor="test", by_branch=True)
    )


def write(shop: Shop, ready: Ready, branch: str | None = None, **properties: str) -> None:
    """As a Spark driver with the conf would."""
    table = shop.deployment.tables.load(SHOPPING)
    rows = pa.Table.from_pylist([dict.fromkeys(COLUMNS[SHOPPING], 1)], table.schema().as_arrow())
    properties = {**ready.spec.stamp.properties(), **SPARK, **{k.replace("_", "-"): v for k, v in properties.items()}}
    table.append(rows, snapshot_properties=properties, branch=branch or ready.spec.branch)


def end(shop: Shop, ready: Ready) -> Barrier:
    return close(shop.deployment, ready.attempt, actor="test", by_branch=True)


@pytest.mark.kills("opened-is-not-closed")
def test_the_tables_tell_what_an_unchanged_job_staged(shop: Shop, ready: Ready) -> None:
    write(shop, ready)
    write(shop, ready)
    assert end(shop, ready).state is BarrierState.OPEN
    attempt = shop.deployment.meta.attempts.get(ready.attempt.attempt_id)
    assert attempt.state is AttemptState.PROCESSED
    assert shop.total(SHOPPING, attempt.staged[SHOPPING].snapshot_id) == 2


@pytest.mark.kills("wap-is-enabled")
def test_nothing_is_begun_without_wap(shop: Shop) -> None:
    barrier = shop.open(1)
    with pytest.raises(WapDisabledError, match=r"ALTER TABLE lake\.shop\.shopping SET TBLPROPERTIES"):
        ask(shop, barrier)
    assert shop.deployment.tables.load(SHOPPING).refs() == {}
    assert [each.state for each in shop.deployment.meta.attempts.of("shopping", 1)] == [AttemptState.ABORTED]


def test_the_inlets_need_wap_as_well(shop: Shop) -> None:
    barrier = shop.open(1)
    shop.process(barrier, "load", [{"amount": 1, "price": 1}])
    shop.deployment.tables.take_in([AMOUNT])
    with pytest.raises(WapDisabledError, match=r"missing on shop\.shopping:"):
        begin(
            shop.deployment, barrier, "amount", Asking(request_key="k", generation="g0", actor="test", by_branch=True)
        )


@pytest.mark.kills("unchanged-job-wrote")
def test_an_outlet_without_output_is_not_taken_as_unchanged(shop: Shop, ready: Ready) -> None:
    with pytest.raises(SilentOutletError, match="an empty append will do"):
        end(shop, ready)
    assert shop.deployment.meta.attempts.get(ready.attempt.attempt_id).state is AttemptState.ABORTED


@pytest.mark.kills("opened-is-not-closed")
def test_a_driver_that_reads_its_spec_and_died_is_not_an_unchanged_job(shop: Shop, ready: Ready) -> None:
    write(shop, ready)
    shop.deployment.tables.write_text(f"{closing_uri(shop.deployment, ready.attempt)}.partial", "")
    with pytest.raises(NotClosedError, match="died before its last write"):
        end(shop, ready)


def test_what_is_no_unchanged_job_needs_a_record(shop: Shop, ready: Ready) -> None:
    write(shop, ready)
    with pytest.raises(NotClosedError, match="expected a closing record"):
        close(shop.deployment, ready.attempt, actor="test")


@pytest.mark.kills("guard-was-there")
def test_a_driver_without_the_guard_is_refused(shop: Shop, ready: Ready) -> None:
    table = shop.deployment.tables.load(SHOPPING)
    rows = pa.Table.from_pylist([dict.fromkeys(COLUMNS[SHOPPING], 1)], table.schema().as_arrow())
    table.append(rows, snapshot_properties=ready.spec.stamp.properties(), branch=ready.spec.branch)
    with pytest.raises(UnguardedError, match="found no sign of it"):
        end(shop, ready)


def test_a_driver_with_the_guard_of_an_older_version_is_refused(shop: Shop, ready: Ready) -> None:
    write(shop, ready, **{"airflow-barrier.guard": "1"})
    with pytest.raises(UnguardedError, match="found one of another version"):
        end(shop, ready)


@pytest.mark.kills("one-driver")
def test_a_second_driver_of_the_same_attempt_is_noticed(shop: Shop, ready: Ready) -> None:
    write(shop, ready)
    write(shop, ready, **{"spark.app.id": "app-2"})
    with pytest.raises(StagedTableError, match="found app-1, app-2"):
        end(shop, ready)


@pytest.mark.kills("spark-is-new-enough")
def test_a_spark_that_is_too_old_is_named(shop: Shop, ready: Ready) -> None:
    write(shop, ready, **{"engine-version": "3.4.4"})
    with pytest.raises(UnguardedError, match=r"Spark 3\.4\.4 wrote shop\.shopping"):
        end(shop, ready)


@pytest.fixture
def second(shop: Shop) -> Barrier:
    """A barrier on top of one that is COMMIT."""
    shop.deployment.tables.take_in([SHOPPING])
    first = shop.open(1)
    shop.process_all(first, [{"amount": 1, "price": 1}])
    shop.commit(first)
    return shop.open(2)


def set_back(shop: Shop, error: BaseException) -> None:
    """As a person does who follows the error."""
    told = re.search(r"CALL <catalog>\.system\.rollback_to_snapshot\('shop\.shopping', (\d+)\)", str(error))
    assert told is not None, error
    shop.deployment.tables.load(SHOPPING).manage_snapshots().rollback_to_snapshot(int(told[1])).commit()


def committed(shop: Shop, barrier: Barrier) -> dict[str, int]:
    ready = ask(shop, barrier, "cleared")
    assert isinstance(ready, Ready)
    write(shop, ready)
    end(shop, ready)
    for job in ("amount", "price"):
        shop.process(barrier, job, [{"amount": 1, "price": 1}], "cleared")
    shop.commit(barrier)
    return shop.main_totals()


@pytest.mark.kills("unchanged-job-leaves-main-alone", "attempt-is-not-on-main")
@pytest.mark.parametrize("also_staged", [False, True])
def test_a_job_that_wrote_past_its_branch_is_told_so_and_the_way_back(
    shop: Shop, second: Barrier, also_staged: bool
) -> None:
    ready = ask(shop, second)
    assert isinstance(ready, Ready)
    write(shop, ready, branch="main")
    if also_staged:
        write(shop, ready)
    with pytest.raises(
        ForeignWriteError, match=r"past its branch barrier_shopping_b2_r0_a\d+.* of shop\.shopping"
    ) as told:
        end(shop, ready)
    with pytest.raises(ForeignWriteError, match=r"expected main at snapshot"):
        ask(shop, second)
    set_back(shop, told.value)
    assert committed(shop, second) == dict.fromkeys(COLUMNS, 2)


def test_an_inlet_that_a_job_wrote_to_is_told(shop: Shop, second: Barrier) -> None:
    shop.deployment.tables.take_in([AMOUNT])
    shop.process(second, "load", [{"amount": 1, "price": 1}])
    ready = begin(
        shop.deployment, second, "amount", Asking(request_key="k", generation="g0", actor="test", by_branch=True)
    )
    assert isinstance(ready, Ready)
    write(shop, ready, branch="main")
    with pytest.raises(ForeignWriteError, match=r"past its branch .* of shop\.shopping"):
        end(shop, ready)


def test_a_staged_snapshot_that_a_person_brings_to_main_is_no_publish(shop: Shop, second: Barrier) -> None:
    """Nor is it one after a recovery, which gives up the barrier that it was staged for."""
    staged = shop.write(shop.begin(second, "load"), [{"amount": 1, "price": 1}]).staged[SHOPPING].snapshot_id
    shop.deployment.tables.load(SHOPPING).manage_snapshots().set_current_snapshot(staged).commit()
    with pytest.raises(ForeignWriteError):
        shop.begin(second, "load", "cleared")
    recover(shop.deployment, "shopping", actor="test", reason="test")
    check_lead(shop.deployment, "shopping")
    third = shop.open(3)
    with pytest.raises(ForeignWriteError) as told:
        ask(shop, third)
    set_back(shop, told.value)
    assert committed(shop, third) == dict.fromkeys(COLUMNS, 2)


@pytest.mark.kills("origin-was-published")
def test_a_staged_snapshot_on_main_keeps_nobody_from_leading(shop: Shop, second: Barrier) -> None:
    staged = shop.write(shop.begin(second, "load"), [{"amount": 1, "price": 1}]).staged[SHOPPING].snapshot_id
    shop.deployment.tables.load(SHOPPING).manage_snapshots().set_current_snapshot(staged).commit()
    folder, _, _ = entry_uri(shop.deployment, "shopping", 1).rpartition("/")
    shop.deployment.tables.delete([f"{folder}/head.json"])
    check_lead(shop.deployment, "shopping")


def test_what_was_on_main_by_hand_is_staged_anew(shop: Shop, second: Barrier) -> None:
    """Main never returns to a snapshot that it left, not even to one that was never published."""
    shop.process_all(second, [{"amount": 1, "price": 1}])
    staged = {row.table: row.snapshot_id for row in shop.deployment.meta.barriers.progress("shopping", 2)}[SHOPPING]
    shop.deployment.tables.load(SHOPPING).manage_snapshots().set_current_snapshot(staged).commit()
    with pytest.raises(ForeignWriteError) as told:
        shop.commit(second)
    set_back(shop, told.value)
    with pytest.raises(ForeignWriteError, match="clearing the job"):
        shop.commit(second)
    assert committed(shop, second) == dict.fromkeys(COLUMNS, 2)
