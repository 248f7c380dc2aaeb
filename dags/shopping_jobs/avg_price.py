"""What a user pays for an item on average: on top of two other jobs' tables, only where either of them changed."""

from pyspark.sql import functions as F

from airflow_barrier.spark.job import epoch_job

PAIR = ["userId", "itemId"]


@epoch_job
def avg_price(epoch):
    amounts, prices = "shop.user_item_amount", "shop.user_item_price"
    touched = epoch.changes(amounts).select(*PAIR).union(epoch.changes(prices).select(*PAIR)).distinct()
    now = (
        touched.join(epoch.read(amounts).select(*PAIR, "totalAmount"), PAIR, "left")
        .join(epoch.read(prices).select(*PAIR, "totalPrice"), PAIR, "left")
        .withColumn("avgPrice", F.expr("CAST(totalPrice / NULLIF(totalAmount, 0) AS DECIMAL(18, 5))"))
    )
    t = epoch.target("shop.user_item_avg_price")
    (
        now.alias("n")
        .mergeInto(t, F.expr(f"{t}.userId = n.userId AND {t}.itemId = n.itemId"))
        .whenMatched(F.expr("n.totalPrice IS NULL")).delete()
        .whenMatched().update({"avgPrice": F.expr("n.avgPrice")})
        .whenNotMatched(F.expr("n.totalPrice IS NOT NULL"))
        .insert({column: F.expr(f"n.{column}") for column in (*PAIR, "avgPrice")})
        .merge()
    )  # fmt: skip


if __name__ == "__main__":
    avg_price.main()
