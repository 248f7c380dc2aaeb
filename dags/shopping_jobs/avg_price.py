"""What a user pays for an item on average: on top of two other jobs' tables, only where either of them changed."""

from pyspark.sql import functions as F

from airflow_barrier.spark.job import epoch_job

PAIR = ["userId", "itemId"]
# by `=` a NULL would find no row, neither to join nor to update
SAME_PAIR = "{0}.userId <=> n.userId AND {0}.itemId <=> n.itemId"


@epoch_job
def avg_price(epoch):
    amounts, prices = "shop.user_item_amount", "shop.user_item_price"
    touched = epoch.changes(amounts).select(*PAIR).union(epoch.changes(prices).select(*PAIR)).distinct()
    now = (
        touched.alias("n")
        .join(epoch.read(amounts).alias("a"), F.expr(SAME_PAIR.format("a")), "left")
        .join(epoch.read(prices).alias("p"), F.expr(SAME_PAIR.format("p")), "left")
        .selectExpr(
            "n.userId",
            "n.itemId",
            "totalPrice",
            "CAST(totalPrice / NULLIF(totalAmount, 0) AS DECIMAL(18, 5)) AS avgPrice",
        )
    )
    epoch.spark.sql(
        f"""
        MERGE INTO {epoch.target("shop.user_item_avg_price")} t USING {{now}} n
            ON {SAME_PAIR.format("t")}
        WHEN MATCHED AND n.totalPrice IS NULL THEN DELETE
        WHEN MATCHED THEN UPDATE SET avgPrice = n.avgPrice
        WHEN NOT MATCHED AND n.totalPrice IS NOT NULL THEN
            INSERT (userId, itemId, avgPrice) VALUES (n.userId, n.itemId, n.avgPrice)
        """,
        now=now,
    )


if __name__ == "__main__":
    avg_price.main()
