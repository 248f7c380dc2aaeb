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
    t = epoch.target("shop.user_item_avg_price")
    (
        now.alias("n")
        .mergeInto(t, F.expr(SAME_PAIR.format(t)))
        .whenMatched(F.expr("n.totalPrice IS NULL")).delete()
        .whenMatched().update({"avgPrice": F.expr("n.avgPrice")})
        .whenNotMatched(F.expr("n.totalPrice IS NOT NULL"))
        .insert({column: F.expr(f"n.{column}") for column in (*PAIR, "avgPrice")})
        .merge()
    )  # fmt: skip


if __name__ == "__main__":
    avg_price.main()
