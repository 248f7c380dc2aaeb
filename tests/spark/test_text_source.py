"""A CSV file as Germans write it, from its landing to what readers see."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_barrier.coordinator.staging import close
from airflow_barrier.protocol.errors import SourceDataError
from airflow_barrier.spark.driver import run_epoch
from airflow_barrier.spark.epoch import Epoch
from tests.coordinator.test_sources import fragment, landing
from tests.support.shop import SHOPPING, Shop
from tests.support.spark import session_on

if TYPE_CHECKING:
    from tests.support.spark import SparkServer


def load(epoch: Epoch) -> None:
    cents = epoch.source("purchases").selectExpr("amount", "CAST(price * 100 AS BIGINT) AS price")
    cents.writeTo(epoch.target(SHOPPING)).append()


def test_a_file_that_is_refused_is_mended_read_and_published(
    shop: Shop, spark_server: SparkServer, tmp_path: Path
) -> None:
    file = tmp_path / "landing" / "date=2026-01-09" / "purchases.csv"
    file.parent.mkdir(parents=True)
    file.write_text("amount;price\n1;2,50\n2;1.234,50\n")
    options = {"header": True, "delimiter": ";", "decimal_separator": ","}
    source = landing(tmp_path / "landing", format="csv", schema="amount BIGINT, price DECIMAL(12,2)", options=options)
    barrier = shop.open(5, fragment(source))
    with session_on(spark_server) as session:
        first = shop.begin(barrier, "load")
        found = "purchases.csv, line 3: source purchases: expected price .* another decimal separator than ','"
        with pytest.raises(SourceDataError, match=found):
            run_epoch(session, first.spec, load)
        file.write_text("amount;price\n1;2,50\n2;1234,50\n")
        second = shop.begin(barrier, "load", "g1")
        close(shop.deployment, second.attempt, record=run_epoch(session, second.spec, load), actor="test")
    for job in ("amount", "price"):
        shop.process(barrier, job, [{"amount": 1, "price": 1}])
    shop.commit(barrier)
    assert shop.main_totals()[SHOPPING] == 4 + 250 + 123_450
