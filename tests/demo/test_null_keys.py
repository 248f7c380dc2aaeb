"""A key that is NULL is one key: in the documents' jobs and the shopping topology's it has one row after each epoch."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from airflow_barrier.spark.job import epoch_job, load_job
from airflow_barrier.spark.sql import SqlJob
from airflow_barrier.spark.testing import epoch_of
from demo import seeds
from demo.cast import DAGS

README = (Path(__file__).parents[2] / "README.md").read_text()
DOCUMENT = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text()
SHOPPING = "userId BIGINT, itemId BIGINT, basketId BIGINT, amount BIGINT, price DECIMAL(12, 2), ts TIMESTAMP"
TOTAL = "userId BIGINT, itemId BIGINT, {} BIGINT"
COUNTED = "userId BIGINT, itemId BIGINT, {} DECIMAL(18, 2), purchases BIGINT"
AMOUNT, PRICE, AVERAGE = ("shop.user_item_amount", "shop.user_item_price", "shop.user_item_avg_price")
NOON = datetime(2026, 1, 1, 12)  # noqa: DTZ001 - Spark's session has its zone


def job_of(file: str) -> Any:
    return load_job(str(DAGS / "shopping_jobs" / file))


def documents_sql() -> SqlJob:
    found = re.search(r'PRICE = """(.*?)"""', DOCUMENT, re.DOTALL)
    assert found
    return SqlJob(found[1])


def documents_python() -> Any:
    found = re.search(r"```python\n(@epoch_job\ndef amount.*?)```", DOCUMENT, re.DOTALL)
    assert found
    module: dict[str, Any] = {"F": F, "epoch_job": epoch_job}
    exec(found[1], module)  # the document's own
    return module["amount"]


def price_sql() -> SqlJob:
    return SqlJob((DAGS / "shopping_jobs" / "price.sql").read_text())


@pytest.mark.parametrize(
    ("job", "outlet", "columns", "before", "after"),
    [
        (documents_sql, PRICE, TOTAL.format("totalPrice"), (1, None, 2), (1, None, 5)),
        (documents_python, AMOUNT, TOTAL.format("totalAmount"), (1, None, 2), (1, None, 3)),
        (lambda: seeds.JOBS["price"], seeds.PRICE, TOTAL.format("totalPrice"), (1, None, 2), (1, None, 5)),
        (price_sql, PRICE, COUNTED.format("totalPrice"), (1, None, Decimal(2), 1), (1, None, Decimal(5), 2)),
        (
            lambda: job_of("amount.py"),
            AMOUNT,
            COUNTED.format("totalAmount"),
            (1, None, Decimal(2), 1),
            (1, None, Decimal(3), 2),
        ),
    ],
    ids=["document, SQL", "document, Python", "seeds", "price", "amount"],
)
def test_totals(
    spark: SparkSession, job: Any, outlet: str, columns: str, before: tuple[Any, ...], after: tuple[Any, ...]
) -> None:
    bought = spark.createDataFrame([(1, None, 7, 1, Decimal(3), NOON)], SHOPPING)
    epoch = epoch_of(
        spark,
        changes={"shop.shopping": bought, seeds.SHOPPING: bought},
        outlets={outlet: spark.createDataFrame([before], columns)},
    )
    job()(epoch)
    assert [tuple(row) for row in epoch.read(outlet).collect()] == [after]


def test_lines_products_and_averages(spark: SparkSession) -> None:
    line = "household_id BIGINT, product_id BIGINT, basket_id BIGINT, quantity BIGINT, sales_value DECIMAL(12, 2)"
    sent = spark.createDataFrame(
        [(1, None, 7, 2, Decimal(3), False, NOON, NOON)],
        f"{line}, void BOOLEAN, sent_at TIMESTAMP, transaction_timestamp TIMESTAMP",
    )
    listed = "product_id BIGINT, department STRING, product_category STRING, brand STRING"
    item = "itemId BIGINT, department STRING, category STRING, brand STRING"
    pair = (1, None)
    totals = {AMOUNT: ("totalAmount BIGINT", 4), PRICE: ("totalPrice DECIMAL(18, 2)", Decimal(6))}
    now = {
        table: spark.createDataFrame([(*pair, total)], f"userId BIGINT, itemId BIGINT, {column}")
        for table, (column, total) in totals.items()
    }
    epoch = epoch_of(
        spark,
        changes=now,
        read=now,
        sources={
            "shopping": sent,
            "products": spark.createDataFrame([(None, "a", "b", "new")], listed),
        },
        outlets={
            "shop.shopping": spark.createDataFrame([(1, None, 7, 1, Decimal(3), NOON)], SHOPPING),
            "shop.products": spark.createDataFrame([(None, "a", "b", "old")], item),
            AVERAGE: spark.createDataFrame(
                [(*pair, Decimal(1))], "userId BIGINT, itemId BIGINT, avgPrice DECIMAL(18, 5)"
            ),
        },
    )
    for file in ("load.py", "products.py", "avg_price.py"):
        job_of(file)(epoch)
    assert [row.amount for row in epoch.read("shop.shopping").collect()] == [2]
    assert [row.brand for row in epoch.read("shop.products").collect()] == ["new"]
    assert [tuple(row) for row in epoch.read(AVERAGE).collect()] == [(*pair, Decimal("1.50000"))]


def test_what_is_spent_on_products_without_a_category(spark: SparkSession) -> None:
    products = spark.createDataFrame([(9, None)], "itemId BIGINT, category STRING")
    bought = spark.createDataFrame([(1, 9, 7, 1, Decimal(3), NOON)], SHOPPING)
    none_yet = {"shop.shopping": bought.limit(0), "shop.products": products}
    outlet = "shop.user_category_spend"
    epoch = epoch_of(
        spark,
        changes={"shop.shopping": bought, "shop.products": products.limit(0)},
        read={"shop.shopping": bought, "shop.products": products},
        previous=none_yet,
        outlets={
            outlet: spark.createDataFrame(
                [(1, None, Decimal(2), 1)], "userId BIGINT, category STRING, spend DECIMAL(18, 2), purchases BIGINT"
            )
        },
    )
    job_of("category_spend.py")(epoch)
    assert [tuple(row) for row in epoch.read(outlet).collect()] == [(1, None, Decimal(5), 2)]


def test_the_readmes_jobs(spark: SparkSession) -> None:
    load, amount = (
        SqlJob(re.findall(rf'(?s)^{name} = "+(.*?)"+$', README, re.MULTILINE)[0]) for name in ("LOAD", "AMOUNT")
    )
    purchases = "item BIGINT, amount BIGINT"
    epoch = epoch_of(
        spark,
        sources={"purchases": spark.createDataFrame([(None, 1), (None, 2)], purchases)},
        outlets={"till.purchases": spark.createDataFrame([], purchases)},
    )
    load(epoch)
    loaded = {"till.purchases": epoch.read("till.purchases")}
    epoch = epoch_of(spark, read=loaded, outlets={"till.amount": spark.createDataFrame([(None, 2)], purchases)})
    amount(epoch)
    assert [tuple(row) for row in epoch.read("till.amount").collect()] == [(None, 3)]
