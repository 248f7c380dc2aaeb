"""External sources over a barrier's life: cut at opening, read by jobs, mended by a person, part of the next epoch."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_barrier.coordinator.aborting import abort_barrier
from airflow_barrier.coordinator.opening import Later, Opened, open_barrier
from airflow_barrier.coordinator.staging import Asking, begin, close
from airflow_barrier.protocol.errors import SourceDataError
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.sources.files import Files
from tests.metaservice.test_guards import statements
from tests.support.runs import run_of
from tests.support.shop import JOBS, MONDAY, SHOPPING, Shop

ROWS = [{"amount": 1, "price": 2}]


def landing(folder: Path, **options: object) -> Files:
    settings: dict[str, object] = {
        "schema": "amount BIGINT, price BIGINT",
        "attribute_by": "path",
        "path_date": "date=%Y-%m-%d",
        **options,
    }
    return Files(str(folder), name="purchases", **settings)  # type: ignore[arg-type]


def fragment(source: Files) -> Fragment:
    load = Job("load", "shopping_dag", outlets=(SHOPPING,), externals=(source.declare(),))
    return Fragment("shopping", "shopping_dag", (load, *JOBS[1:]))


def arrive(folder: Path, day: int, name: str = "part-0.parquet", **columns: list[object]) -> Path:
    path = folder / f"date={MONDAY + timedelta(days=day - 1):%Y-%m-%d}" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns or {"amount": [1], "price": [2]}), path)
    return path


def files_of(shop: Shop, barrier_id: int) -> list[str]:
    return [Path(item).name for item in shop.deployment.meta.cuts.of("shopping", barrier_id)["purchases"].items]


def test_each_file_is_in_one_epoch_and_an_aborted_one_gives_its_files_back(shop: Shop, tmp_path: Path) -> None:
    folder = tmp_path / "landing"
    source = landing(folder)
    arrive(folder, 1, "a.parquet")
    arrive(folder, 2, "b.parquet")
    shop.open(1, fragment(source))
    shop.open(2, fragment(source))
    assert (files_of(shop, 1), files_of(shop, 2)) == (["a.parquet"], ["b.parquet"])
    abort_barrier(shop.deployment, "shopping", 2, reason="given up", actor="test")
    arrive(folder, 3, "c.parquet")
    third = shop.open(3, fragment(source))
    assert sorted(files_of(shop, third.barrier_id)) == ["b.parquet", "c.parquet"]


def test_a_run_that_is_cleared_with_the_code_of_then_does_not_bring_its_topology_back(
    shop: Shop, tmp_path: Path
) -> None:
    """Versioned DAG bundles run an old run's tasks with the code that it had."""
    folder = tmp_path / "landing"
    arrive(folder, 1)
    shop.open(1)
    now = fragment(landing(folder))
    shop.open(2, now)
    assert shop.open(1).barrier_id == 1
    assert shop.deployment.meta.topologies.get("shopping").externals == now.jobs[0].externals


def test_the_items_of_a_cut_are_read_by_nobody_who_does_not_read_its_source(shop: Shop, tmp_path: Path) -> None:
    """There may be a hundred thousand in the first epoch, and each job of each barrier begins."""
    arrive(tmp_path / "landing", 1)
    with statements() as said:
        first = shop.open(1, fragment(landing(tmp_path / "landing")))
        shop.process(first, "load", ROWS)
        said.clear()
        shop.process(first, "amount", ROWS)
        shop.process(first, "price", ROWS)
        assert not [each for each in said if "barrier_cut_item" in each]
        shop.open(2, fragment(landing(tmp_path / "landing")))
        read = [each for each in said if each.startswith("SELECT") and "barrier_cut_item" in each]
        assert all("item IN" in each for each in read), "only whether what was listed has been read"


@pytest.mark.parametrize("broken", ["unreadable", "schema-changed"])
def test_a_broken_file_fails_its_job_alone_and_a_mended_one_is_taken_after_a_clear(
    shop: Shop, tmp_path: Path, broken: str
) -> None:
    folder = tmp_path / "landing"
    source = landing(folder)
    bad = arrive(folder, 1, "bad.parquet")
    if broken == "unreadable":
        bad.write_bytes(b"this is no parquet")
    else:
        arrive(folder, 1, "bad.parquet", amount=["one"], price=["two"])
    barrier = shop.open(1, fragment(source))
    with pytest.raises(SourceDataError, match=r"bad\.parquet"):
        begin(shop.deployment, barrier, "load", Asking(request_key="k", generation="g0", actor="test"))
    assert shop.deployment.meta.barriers.get("shopping", 1).state is BarrierState.OPEN, "the barrier stays open"
    arrive(folder, 1, "bad.parquet")
    with pytest.raises(SourceDataError, match=r"bad\.parquet"):
        begin(shop.deployment, barrier, "load", Asking(request_key="k", generation="g0", actor="a retry"))
    ready = shop.begin(barrier, "load", generation="cleared")
    close(shop.deployment, ready.attempt, record=shop.write(ready, ROWS), actor="test")
    bad.write_bytes(b"changed once more")
    with pytest.raises(SourceDataError, match=r"bad\.parquet"):
        shop.begin(barrier, "load", generation="cleared again")


def test_the_watermark_gates_the_timestamp(shop: Shop, tmp_path: Path) -> None:
    from datetime import datetime

    folder = tmp_path / "landing"
    source = landing(
        folder,
        schema="amount BIGINT, price BIGINT, at TIMESTAMP",
        attribute_by="event_time",
        event_time="at",
        path_date=None,
    )
    early: list[object] = [MONDAY + timedelta(hours=12)]
    arrive(folder, 1, "early.parquet", amount=[1], price=[2], at=early)

    def open_tuesday() -> Opened | Later:
        return open_barrier(
            shop.deployment,
            fragment(source),
            MONDAY + timedelta(days=1),
            timestamp_from="test",
            run=run_of("run"),
            actor="test",
            now=datetime.now(MONDAY.tzinfo),
        )

    waiting = open_tuesday()
    assert isinstance(waiting, Later)
    assert "purchases" in waiting.reason
    arrive(folder, 2, "late.parquet", amount=[1], price=[2], at=[MONDAY + timedelta(days=1, hours=1)])
    assert isinstance(open_tuesday(), Opened)


def test_a_source_that_left_and_comes_back_goes_on_where_it_left_off(shop: Shop, tmp_path: Path) -> None:
    """By event time, where a file of an earlier cut still holds records of the time in which nobody read it."""
    folder = tmp_path / "landing"
    source = landing(
        folder,
        schema="amount BIGINT, price BIGINT, at TIMESTAMP",
        attribute_by="event_time",
        event_time="at",
        path_date=None,
    )
    hours: list[object] = [MONDAY + timedelta(hours=hour) for hour in (12, 36, 60)]
    arrive(folder, 1, "three_days.parquet", amount=[1] * 3, price=[2] * 3, at=hours)
    shop.open(1, fragment(source))
    shop.open(2)
    arrive(folder, 5, "later.parquet", amount=[1], price=[2], at=[MONDAY + timedelta(days=4)])
    third = shop.open(3, fragment(source))
    cut = shop.deployment.meta.cuts.of("shopping", third.barrier_id)["purchases"]
    assert files_of(shop, third.barrier_id) == [], "what came since is of later barriers"
    (held,) = source.readings(cut, MONDAY + timedelta(days=2), third.timestamp)
    assert [Path(file).name for file in held.files] == ["three_days.parquet"]
    assert (held.after, held.until) == (MONDAY + timedelta(days=1), MONDAY + timedelta(days=3))
