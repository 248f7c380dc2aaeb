"""A job as people have them: it knows nothing of barriers. Day 1 brings 1, day 2 brings 10, day 3 brings 100."""

import sys
from datetime import date

from pyspark.sql import SparkSession

day = date.fromisoformat(sys.argv[1]).day
spark = SparkSession.builder.appName("load").getOrCreate()
spark.createDataFrame([(1, 10 ** (day - 1))], "k INT, n BIGINT").writeTo("in_airflow.unchanged.events").append()
spark.stop()
