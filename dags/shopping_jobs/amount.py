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
    epoch.spark.sql(
        f"""
        MERGE INTO {epoch.target("shop.user_item_amount")} t USING {{delta}} d
            ON t.userId <=> d.userId AND t.itemId <=> d.itemId
        WHEN MATCHED AND t.purchases + d.purchases = 0 THEN DELETE
        WHEN MATCHED THEN UPDATE SET totalAmount = t.totalAmount + d.amount, purchases = t.purchases + d.purchases
        WHEN NOT MATCHED AND d.purchases > 0 THEN
            INSERT (userId, itemId, totalAmount, purchases) VALUES (d.userId, d.itemId, d.amount, d.purchases)
        """,
        delta=delta,
    )


if __name__ == "__main__":
    amount.main()
