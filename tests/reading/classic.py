"""A program with a Spark session of its own (classic, no server) that reads consistently; prints what it read."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.project.local import QUICK_JAVA
from airflow_barrier.protocol.errors import BarrierError
from airflow_barrier.reading.session import consistent_session
from airflow_barrier.reading.spark_session import ConsistentSpark
from demo.local_spark import PACKAGES, catalog_conf
from tests.metaservice.test_metadata import SEEDS_QUERY
from tests.support.shop import AMOUNT, PRICE

QUERIES = {
    "joined": f"SELECT sum(amount), sum(price) FROM lake.{AMOUNT}, shop.user_item_price",
    "metadata": SEEDS_QUERY,
    "both": f"SELECT price, version, '{{}}' FROM {PRICE}, __META_TABLE_VERSION v WHERE v.table_name = '{PRICE}'",
    "view": "SELECT * FROM spark_catalog.default.prices",
    "temporary": f"SELECT count(*) FROM three, {PRICE}",
    "temporary over the topology": "SELECT * FROM now",
    "pinned": "SELECT * FROM pinned",
    "write": f"INSERT INTO {PRICE} VALUES (1)",
}


def main(folder: Path, ivy: str) -> None:
    builder = SparkSession.builder.master("local[1]")
    conf = {
        **catalog_conf(folder, folder / "barrier.db"),
        "spark.jars.packages": PACKAGES,
        "spark.jars.ivy": ivy,
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(folder / "spark-warehouse"),
    }
    for key, value in conf.items():
        builder = builder.config(key, value)
    plain = builder.getOrCreate()
    plain.sql("USE lake.shop")
    plain.sql("CREATE VIEW spark_catalog.default.prices AS SELECT price AS p FROM lake.shop.user_item_price")
    plain.range(3).createOrReplaceTempView("three")
    plain.table("user_item_price").createOrReplaceTempView("now")
    deployment = Deployment.connect(Settings.embedded(str(folder)))
    with consistent_session(deployment, "shopping", at=1) as session:
        spark = session.spark(plain)
        spark.table("user_item_price").createOrReplaceTempView("pinned")
        found = {name: read(spark, query) for name, query in QUERIES.items()}
        found["dataframe"] = spark.table("user_item_price").groupBy().sum("price").collect()[0][0]
    found["left behind"] = [row["viewName"] for row in plain.sql("SHOW VIEWS IN spark_catalog.global_temp").collect()]
    deployment.close()
    plain.stop()
    print(json.dumps(found))


def read(spark: ConsistentSpark, query: str) -> object:
    try:
        return sorted(tuple(row) for row in spark.sql(query).collect())
    except BarrierError as error:
        return type(error).__name__


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
