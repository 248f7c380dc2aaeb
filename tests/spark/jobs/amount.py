"""The job of DESIGN.md, as a team would deploy it: the same file for spark-submit, Spark Connect and unit tests."""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812

from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.job import epoch_job
from airflow_barrier.spark.views import view_of


@epoch_job
def amount(epoch: Epoch) -> None:
    delta = epoch.changes("shop.shopping").groupBy("userId", "itemId").agg(F.sum(F.expr("amount * _weight")).alias("d"))
    epoch.spark.sql(
        f"""
        MERGE INTO {epoch.target("shop.user_item_amount")} t USING {view_of(delta, "delta")} d
            ON t.userId <=> d.userId AND t.itemId <=> d.itemId
        WHEN MATCHED THEN UPDATE SET totalAmount = t.totalAmount + d.d
        WHEN NOT MATCHED THEN INSERT (userId, itemId, totalAmount) VALUES (d.userId, d.itemId, d.d)
        """
    )


if __name__ == "__main__":
    amount.main()
