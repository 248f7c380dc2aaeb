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
    epoch.spark.sql(
        f"""
        MERGE INTO {epoch.target("shop.user_category_spend")} t USING {{delta}} d
            ON t.userId <=> d.userId AND t.category <=> d.category
        WHEN MATCHED AND t.purchases + d.purchases = 0 THEN DELETE
        WHEN MATCHED THEN UPDATE SET spend = t.spend + d.spend, purchases = t.purchases + d.purchases
        WHEN NOT MATCHED AND d.purchases > 0 THEN
            INSERT (userId, category, spend, purchases) VALUES (d.userId, d.category, d.spend, d.purchases)
        """,
        delta=delta,
    )


if __name__ == "__main__":
    category_spend.main()
