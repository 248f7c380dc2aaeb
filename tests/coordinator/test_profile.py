"""Which epochs are small, by what their worker knows of the bytes that they may read."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from airflow_barrier.coordinator.staging import Asking, Ready, begin
from airflow_barrier.spark import profile
from airflow_barrier.spark.profile import profile_of
from tests.coordinator.test_sources import arrive, fragment, landing
from tests.support.shop import AMOUNT, PRICE, SHOPPING, Shop

SMALL = profile_of({}, {}).conf
ROWS = [{"amount": 1, "price": 2}]


def begun(shop: Shop, day: int, job: str = "amount", generation: str = "g0", **asked: Any) -> Ready:
    barrier = shop.deployment.meta.barriers.get("shopping", day)
    asking = Asking(request_key=job, generation=generation, actor="test", **asked)
    ready = begin(shop.deployment, barrier, job, asking)
    assert isinstance(ready, Ready)
    return ready


def first_day(shop: Shop) -> None:
    barrier = shop.open(1)
    shop.process_all(barrier, ROWS)
    shop.commit(barrier)
    shop.process(shop.open(2), "load", ROWS)


def size(shop: Shop, table: str, snapshot_id: int | None) -> int:
    (snapshot,) = [s for s in shop.deployment.tables.load(table).metadata.snapshots if s.snapshot_id == snapshot_id]
    assert snapshot.summary is not None
    return int(snapshot.summary["total-files-size"] or "")


def test_an_epoch_counts_its_changes_its_outlets_and_what_else_it_may_read(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first_day(shop)
    spec = begun(shop, 2).spec
    assert (spec.conf, spec.large) == (SMALL, ())
    whole, before = (size(shop, SHOPPING, at[SHOPPING]) for at in (spec.inputs, spec.previous))
    count = (whole - before) + whole + size(shop, AMOUNT, spec.bases[AMOUNT])
    assert f"a small epoch: it reads at most {count:,} bytes" in caplog.text


def test_an_inlet_too_large_to_be_read_whole_is_named_to_the_driver(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_day(shop)
    spec = begun(shop, 2).spec
    changes = size(shop, SHOPPING, spec.inputs[SHOPPING]) - size(shop, SHOPPING, spec.previous[SHOPPING])
    monkeypatch.setattr(profile, "MOST_BYTES", changes + size(shop, AMOUNT, spec.bases[AMOUNT]))
    spec = begun(shop, 2, "price").spec
    assert (spec.conf, spec.large) == (SMALL, (SHOPPING,))


def test_an_outlet_that_a_merge_reads_makes_the_epoch_large(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    first_day(shop)
    monkeypatch.setattr(profile, "MOST_BYTES", size(shop, PRICE, shop.deployment.tables.mains([PRICE])[PRICE]))
    assert begun(shop, 2, "price").spec.conf == {}


def test_files_of_a_source_count_as_they_were_cut(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = arrive(tmp_path / "landing", 1)
    shop.open(1, fragment(landing(tmp_path / "landing")))
    monkeypatch.setattr(profile, "MOST_BYTES", file.stat().st_size)
    assert begun(shop, 1, "load").spec.conf == SMALL
    monkeypatch.setattr(profile, "MOST_BYTES", file.stat().st_size - 1)
    assert begun(shop, 1, "load", "g1").spec.conf == {}


def test_a_user_may_keep_sparks_conf_and_unchanged_jobs_always_have_it(shop: Shop) -> None:
    first_day(shop)
    shop.deployment.tables.take_in([SHOPPING, PRICE])
    assert begun(shop, 2, profile="spark").spec.conf == {}
    assert begun(shop, 2, "price", by_branch=True).spec.conf == {}
