"""A job as a team has it: it knows nothing of barriers."""

import importlib.util

from pyspark.sql import SparkSession

if __name__ == "__main__":
    assert importlib.util.find_spec("airflow_barrier") is None
    spark = SparkSession.builder.getOrCreate()
    events = spark.table("lake.clustered.events")
    events.groupBy("k").count().withColumnRenamed("count", "n").writeTo("lake.clustered.totals").append()
    spark.stop()
