"""Root job: what the tills sent becomes `shop.shopping`, one row per line of a basket.

A till may send a line again: then what was sent last counts, and a void line goes.
"""

from pyspark.sql import functions as F

from airflow_barrier.spark.job import epoch_job


@epoch_job
def load(epoch):
    newest = (
        epoch.source("shopping")
        .groupBy("basket_id", "product_id")
        .agg(F.expr("max_by(struct(*), sent_at)").alias("line"))
        .select("line.*")
    )
    epoch.spark.sql(
        f"""
        MERGE INTO {epoch.target("shop.shopping")} t USING {{newest}} s
            ON t.basketId <=> s.basket_id AND t.itemId <=> s.product_id
        WHEN MATCHED AND s.void THEN DELETE
        WHEN MATCHED THEN UPDATE SET amount = s.quantity, price = s.sales_value
        WHEN NOT MATCHED AND NOT s.void THEN
            INSERT (userId, itemId, basketId, amount, price, ts)
            VALUES (s.household_id, s.product_id, s.basket_id, s.quantity, s.sales_value, s.transaction_timestamp)
        """,
        newest=newest,
    )


if __name__ == "__main__":
    load.main()
