"""Root job: the catalogue. Most days bring nothing, and the job says so instead of writing an empty epoch."""

from airflow_barrier.spark.job import epoch_job


@epoch_job
def products(epoch):
    landed = epoch.source("products")
    if landed.isEmpty():
        epoch.unchanged("shop.products")
        return
    epoch.spark.sql(
        f"""
        MERGE INTO {epoch.target("shop.products")} t USING {{landed}} s ON t.itemId <=> s.product_id
        WHEN MATCHED THEN UPDATE SET department = s.department, category = s.product_category, brand = s.brand
        WHEN NOT MATCHED THEN
            INSERT (itemId, department, category, brand)
            VALUES (s.product_id, s.department, s.product_category, s.brand)
        """,
        landed=landed,
    )


if __name__ == "__main__":
    products.main()
