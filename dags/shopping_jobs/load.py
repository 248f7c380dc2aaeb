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
    t = epoch.target("shop.shopping")
    (
        newest.alias("s")
        .mergeInto(t, F.expr(f"{t}.basketId <=> s.basket_id AND {t}.itemId <=> s.product_id"))
        .whenMatched(F.expr("s.void")).delete()
        .whenMatched().update({"amount": F.expr("s.quantity"), "price": F.expr("s.sales_value")})
        .whenNotMatched(F.expr("NOT s.void")).insert(
            {
                "userId": F.expr("s.household_id"),
                "itemId": F.expr("s.product_id"),
                "basketId": F.expr("s.basket_id"),
                "amount": F.expr("s.quantity"),
                "price": F.expr("s.sales_value"),
                "ts": F.expr("s.transaction_timestamp"),
            }
        )
        .merge()
    )  # fmt: skip


if __name__ == "__main__":
    load.main()
