"""How much was bought of each item so far, kept up to date by what came since the barrier before. PySpark."""

from pyspark.sql import functions as F

from airflow_barrier.spark.job import epoch_job


@epoch_job
def amount(epoch):
    bought = epoch.source("purchases").groupBy("itemId").agg(F.sum("amount").alias("amount"))
    t = epoch.target("shop.amount")  # the name to write to: readers see it once the barrier is committed
    (
        bought.alias("s")
        .mergeInto(t, F.expr(f"{t}.itemId <=> s.itemId"))  # by `=` a NULL would never find its row again
        .whenMatched()
        .update({"amount": F.expr(f"{t}.amount + s.amount")})
        .whenNotMatched()
        .insertAll()
        .merge()
    )


if __name__ == "__main__":
    amount.main()
