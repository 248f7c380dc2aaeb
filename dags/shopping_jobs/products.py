"""Root job: the catalogue. Most days bring nothing, and the job says so instead of writing an empty epoch."""

from pyspark.sql import functions as F

from airflow_barrier.spark.job import epoch_job


@epoch_job
def products(epoch):
    landed = epoch.source("products")
    if landed.isEmpty():
        epoch.unchanged("shop.products")
        return
    t = epoch.target("shop.products")
    columns = {"department": "department", "category": "product_category", "brand": "brand"}
    values = {column: F.expr(f"s.{landed}") for column, landed in columns.items()}
    (
        landed.alias("s")
        .mergeInto(t, F.expr(f"{t}.itemId <=> s.product_id"))
        .whenMatched().update(values)
        .whenNotMatched().insert({"itemId": F.expr("s.product_id"), **values})
        .merge()
    )  # fmt: skip


if __name__ == "__main__":
    products.main()
