"""The job of DESIGN.md, as a team would deploy it: the same file for spark-submit, Spark Connect and unit tests."""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812

from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.job import epoch_job


@epoch_job
def amount(epoch: Epoch) -> None:
    delta = epoch.changes("shop.shopping").groupBy("userId", "itemId").agg(F.sum(F.expr("amount * _weight")).alias("d"))
    t = epoch.target("shop.user_item_amount")
    (
        delta.alias("d")
        .mergeInto(t, F.expr(f"{t}.userId <=> d.userId AND {t}.itemId <=> d.itemId"))
        .whenMatched()
        .update({"totalAmount": F.expr(f"{t}.totalAmount + d.d")})
        .whenNotMatched()
        .insert({"userId": F.col("d.userId"), "itemId": F.col("d.itemId"), "totalAmount": F.col("d.d")})
        .merge()
    )


if __name__ == "__main__":
    amount.main()
