"""What Spark says of a catalog that it cannot use, and of columns that a table lacks, as errors that say what to do."""

from __future__ import annotations

import re

from airflow_barrier.protocol.errors import BarrierError, CatalogUnavailableError, ConfigurationError
from airflow_barrier.systems.spark_versions import installed_spark

#: By the beginning of the URL after `jdbc:`.
_DRIVERS = {
    "sqlite": "org.xerial:sqlite-jdbc",
    "postgresql": "org.postgresql:postgresql",
}
SPARK_CONF = "`airflow-barrier spark-conf` prints the conf, which a Spark Connect server reads when it starts"

_NO_CLASS = re.compile(r"Cannot find catalog plugin class for catalog '?[^':]+'?: (?P<name>[\w.$]+\w)")
_NO_DRIVER = re.compile(r"No suitable driver found for jdbc:(?P<kind>\w+)")
_NO_DATABASE = re.compile(r"Failed to connect: (?P<url>jdbc:[^\s?;]+)")
_NO_KIND = re.compile(r"Unknown catalog type: (?P<name>\S+)")
_NO_REST = re.compile(
    r"iceberg\.exceptions\.(RESTException|NotAuthorizedException|ForbiddenException)\W+(?P<why>[^\n]*)"
)
_NO_METASTORE = re.compile(r"(RuntimeMetaException|SdkClientException|GlueException)\W+(?P<why>[^\n]*)")
_NO_TABLE = re.compile(r"\[TABLE_OR_VIEW_NOT_FOUND\] The table or view (?P<name>\S+) cannot be found")
_NO_CATALOG = re.compile(
    r"\[REQUIRES_SINGLE_PART_NAMESPACE\] spark_catalog|\[SCHEMA_NOT_FOUND\] The schema `spark_catalog`"
)

_NO_FIT = re.compile(
    r"\[(INCOMPATIBLE_DATA_FOR_TABLE|INSERT_COLUMN_ARITY_MISMATCH|UNRESOLVED_COLUMN)[\w.]*\]\s*(?P<said>[^\n]*)"
)


def columns_error(error: BaseException, tables: str) -> ConfigurationError | None:
    """The error of a job that writes or names columns which a table has not; None: another. ``tables``: its outlets."""
    found = _NO_FIT.search(str(error))
    if found is None:
        return None
    return ConfigurationError(
        f"expected what the job reads and writes ({tables}) to have the columns that it names, of their types, found: "
        f"{found['said'].split(' SQLSTATE')[0].rstrip('. ')}. Correct the job, or the table: ALTER TABLE … ADD COLUMN"
    )


def catalog_error(error: BaseException, catalog: str) -> BarrierError | None:
    """The error of a statement about a table of ``catalog`` that the deployment has; None: another."""
    text, spark = str(error), f"Spark's catalog {catalog}"
    if _NO_CATALOG.search(text):
        return ConfigurationError(
            f"{spark}: expected the conf spark.sql.catalog.{catalog}, found none; correct the connection's "
            f"spark_catalog, or configure it: {SPARK_CONF}"
        )
    if found := _NO_CLASS.search(text):
        return ConfigurationError(
            f"{spark}: expected its class {found['name']}, found none: Iceberg's runtime is not among Spark's jars; "
            f"add {installed_spark().iceberg_runtime} to spark.jars.packages, and start Spark again"
        )
    if found := _NO_DRIVER.search(text):
        package = _DRIVERS.get(found["kind"], "the driver's jar")
        return ConfigurationError(
            f"{spark}: expected the JDBC driver of its database, {found['kind']}, found none among Spark's jars; add "
            f"{package} to spark.jars.packages, and start Spark again"
        )
    if found := _NO_KIND.search(text):
        return ConfigurationError(
            f"{spark}: expected the type jdbc, rest, hive or glue, found {found['name']}; correct "
            f"spark.sql.catalog.{catalog}.type: {SPARK_CONF}"
        )
    if found := _NO_TABLE.search(text):
        return ConfigurationError(
            f"{spark}: expected {found['name']}, since the deployment's catalog has this table, found none: it is "
            f"another catalog, or lists its tables under another name than the connection's catalog_name; {SPARK_CONF}"
        )
    if found := _NO_DATABASE.search(text):
        return CatalogUnavailableError(
            f"{spark}: expected an answer from its database, found that Spark cannot connect to {found['url']}; is it "
            f"running, reachable from Spark, and are spark.sql.catalog.{catalog}.jdbc.user and .password right?"
        )
    if found := _NO_REST.search(text):
        return CatalogUnavailableError(
            f"{spark}: expected an answer from its REST catalog, found {found[1]}: {found['why'][:100]}; is it "
            f"running, reachable from Spark, and are the credentials in spark.sql.catalog.{catalog}.* right?"
        )
    if found := _NO_METASTORE.search(text):
        return CatalogUnavailableError(
            f"{spark}: expected an answer from its Hive Metastore or AWS Glue, found {found[1]}: {found['why'][:100]}; "
            "is it reachable from Spark, and has Spark credentials for it?"
        )
    return None
