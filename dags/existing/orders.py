"""Takes one day's file of orders into `lake.sales.orders`. Run again, it replaces the day.

Plain PySpark, as it was before anybody thought of barriers: spark-submit orders.py 2025-01-31
"""

import os
import sys

from pyspark.sql import SparkSession

day = sys.argv[1]
folder = os.environ.get("SALES_LANDING", "/data/landing/sales")

spark = SparkSession.builder.getOrCreate()
spark.sql(
    "CREATE TABLE IF NOT EXISTS lake.sales.orders "
    "(orderId BIGINT, customer STRING, total DECIMAL(12, 2), day DATE) USING iceberg PARTITIONED BY (day)"
)
orders = spark.read.csv(f"file:{folder}/{day}.csv", schema="orderId BIGINT, customer STRING, total DECIMAL(12, 2)")
orders.selectExpr("*", f"DATE'{day}' AS day").writeTo("lake.sales.orders").overwritePartitions()
spark.stop()
