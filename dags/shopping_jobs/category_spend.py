"""What each user spent per category: a join of two tables that both change, without a state of its own.

A line that is corrected moves its money; a product that changes category takes along all the money ever spent on it.
"""

from pyspark.sql import functions as F

from airflow_barrier.spark.job import epoch_job


@epoch_job
def category_spend(epoch):
    delta = (
        epoch.delta_join("shop.shopping", "shop.products", on=["itemId"])
        .groupBy("userId", "category")
        .agg(F.sum(F.expr("price * _weight")).alias("spend"), F.sum("_weight").alias("purchases"))
    )
    t = epoch.target("shop.user_category_spend")
    totals = {
        "spend": F.expr(f"{t}.spend + d.spend"),
        "purchases": F.expr(f"{t}.purchases + d.purchases"),
    }
    first = {column: F.expr(f"d.{column}") for column in ("userId", "category", "spend", "purchases")}
    (
        delta.alias("d")
        .mergeInto(t, F.expr(f"{t}.userId <=> d.userId AND {t}.category <=> d.category"))
        .whenMatched(F.expr(f"{t}.purchases + d.purchases = 0")).delete()
        .whenMatched().update(totals)
        .whenNotMatched(F.expr("d.purchases > 0")).insert(first)
        .merge()
    )  # fmt: skip


if __name__ == "__main__":
    category_spend.main()
