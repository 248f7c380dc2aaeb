"""How much of each item a user bought so far, kept up to date from the changes of `shop.shopping`."""

from pyspark.sql import functions as F

from airflow_barrier.spark.job import epoch_job


@epoch_job
def amount(epoch):
    delta = (
        epoch.changes("shop.shopping")
        .groupBy("userId", "itemId")
        .agg(F.sum(F.expr("amount * _weight")).alias("amount"), F.sum("_weight").alias("purchases"))
    )
    t = epoch.target("shop.user_item_amount")
    totals = {
        "totalAmount": F.expr(f"{t}.totalAmount + d.amount"),
        "purchases": F.expr(f"{t}.purchases + d.purchases"),
    }
    first = {column: F.expr(f"d.{column}") for column in ("userId", "itemId", "purchases")}
    (
        delta.alias("d")
        .mergeInto(t, F.expr(f"{t}.userId <=> d.userId AND {t}.itemId <=> d.itemId"))
        .whenMatched(F.expr(f"{t}.purchases + d.purchases = 0")).delete()
        .whenMatched().update(totals)
        .whenNotMatched(F.expr("d.purchases > 0")).insert({**first, "totalAmount": F.expr("d.amount")})
        .merge()
    )  # fmt: skip


if __name__ == "__main__":
    amount.main()
