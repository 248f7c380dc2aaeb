"""How a team tests its epoch job: DataFrames in, the outlet's rows out. Nothing else runs."""

from __future__ import annotations

from decimal import Decimal

import pytest
from pyspark.sql import SparkSession

from airflow_barrier.protocol.errors import (
    ConfigurationError,
    NotAppendOnlyError,
    UndeclaredTableError,
)
from airflow_barrier.spark.testing import epoch_of
from tests.spark.jobs.amount import amount

SHOPPING = "userId BIGINT, itemId BIGINT, amount DECIMAL(18, 2)"
AMOUNT = "userId BIGINT, itemId BIGINT, totalAmount DECIMAL(38, 2)"


def rows(epoch, table="shop.user_item_amount"):
    return sorted(tuple(row) for row in epoch.read(table).collect())


def test_first_purchases_make_the_first_totals(spark: SparkSession) -> None:
    epoch = epoch_of(
        spark,
        changes={"shop.shopping": spark.createDataFrame([(1, 7, Decimal("2.50")), (1, 7, Decimal("1.00"))], SHOPPING)},
        outlets={"shop.user_item_amount": spark.createDataFrame([], AMOUNT)},
    )
    amount(epoch)
    assert rows(epoch) == [(1, 7, Decimal("3.50"))]


@pytest.mark.kills("appends-in-unit-tests")
def test_a_corrected_purchase_is_taken_back_and_counted_anew(spark: SparkSession) -> None:
    delta = spark.createDataFrame(
        [(1, 7, Decimal("2.50"), "delete"), (1, 7, Decimal("4.00"), "insert")], f"{SHOPPING}, _change_type STRING"
    )
    epoch = epoch_of(
        spark,
        changes={"shop.shopping": delta},
        outlets={
            "shop.user_item_amount": spark.createDataFrame([(1, 7, Decimal("3.50")), (2, 7, Decimal("9.00"))], AMOUNT)
        },
    )
    amount(epoch)
    assert rows(epoch) == [(1, 7, Decimal("5.00")), (2, 7, Decimal("9.00"))]
    assert sorted(tuple(row) for row in epoch.previous("shop.user_item_amount").collect()) == [
        (1, 7, Decimal("3.50")),
        (2, 7, Decimal("9.00")),
    ]
    with pytest.raises(NotAppendOnlyError, match=r"shop\.shopping"):
        epoch.appends("shop.shopping")


def test_what_the_test_did_not_give_is_named(spark: SparkSession) -> None:
    epoch = epoch_of(
        spark,
        changes={"shop.shopping": spark.createDataFrame([], SHOPPING)},
        sources={"landing": spark.createDataFrame([(1,)], "id BIGINT")},
        outlets={"shop.user_item_amount": spark.createDataFrame([], AMOUNT)},
    )
    with pytest.raises(ConfigurationError, match=r"previous=\{'shop.shopping'"):
        epoch.previous("shop.shopping")
    with pytest.raises(UndeclaredTableError, match=r"shop\.products"):
        epoch.read("shop.products")
    with pytest.raises(UndeclaredTableError, match="elsewhere"):
        epoch.source("elsewhere")
    assert epoch.appends("shop.shopping").columns == ["userId", "itemId", "amount"]
    assert epoch.source("landing").count() == 1
    epoch.unchanged("shop.user_item_amount")
    assert epoch.declared_unchanged == {"shop.user_item_amount"}
