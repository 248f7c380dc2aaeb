"""The Spark conf of a deployment: the catalog in which its tables are, as Spark has to know it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.systems.spark_versions import GUARD_CLASS, SparkVersion, installed_spark, needs_guard
from airflow_barrier.tables import catalog_at

#: Iceberg's own, for its statements such as ALTER TABLE ... CREATE BRANCH.
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
#: How many compiled classes a server keeps. Sessions live on, and six small jobs have 350; Spark keeps 100.
COMPILED, MANY_COMPILED = "spark.sql.codegen.cache.maxEntries", "20000"
#: Storage that Spark reaches without a package: a disk that all hosts share, and HDFS.
_PLAIN = ("", "file", "hdfs")


@dataclass(frozen=True)
class SparkConf:
    """``conf`` is complete but for ``secrets``: property -> what has to be put there by hand.

    ``remarks``: sentences about what else is needed.
    """

    conf: Mapping[str, str]
    secrets: Mapping[str, str]
    remarks: tuple[str, ...]

    @property
    def with_places_for_secrets(self) -> dict[str, str]:
        """All of it, with ``<what to put there>`` where a secret belongs."""
        return {**self.conf, **{name: f"<{what}>" for name, what in self.secrets.items()}}


def spark_conf(settings: Settings, formats: Iterable[str] = (), spark: SparkVersion | None = None) -> SparkConf:
    """Return Spark's settings for work on the tables of a deployment. Raises ConfigurationError for a catalog it cannot
    enter.

    ``formats``: of sources that jobs read, as ``source_packages`` of
    :class:`~airflow_barrier.systems.spark_versions.SparkVersion` names them. ``spark``: None is the one installed here.

    >>> spark_conf(Settings.embedded("/data/warehouse")).conf["spark.sql.catalog.lake.type"]
    'jdbc'
    """
    kind = catalog_at(settings.catalog_uri)
    found = kind.load().spark_catalog(settings.catalog_uri, settings.warehouse, dict(settings.catalog_properties))
    catalog = f"spark.sql.catalog.{settings.spark_catalog}"
    spark = spark or installed_spark()
    modules = (spark.iceberg_module(name) for name in found.modules)
    sources = (spark.source_packages[name] for name in formats)
    conf = {
        "spark.jars.packages": ",".join((spark.iceberg_runtime, *modules, *found.packages, *sources)),
        "spark.sql.extensions": ",".join((EXTENSIONS, *((GUARD_CLASS,) if needs_guard(spark.number) else ()))),
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{catalog}.{option}": value for option, value in found.options.items()},
        # Others commit to the tables while sessions live: a cached table would not show it.
        f"{catalog}.cache-enabled": "false",
        COMPILED: MANY_COMPILED,
    }
    secrets = {f"{catalog}.{option}": what for option, what in found.secrets.items()}
    return SparkConf(conf, secrets, (*_about_guard(spark), *_about_storage(settings, catalog)))


def reader_conf(settings: Settings, uri: str, warehouse: str, spark: SparkVersion | None = None) -> SparkConf:
    """Return the settings of a Spark that only reads: its catalog is at one barrier, and is called as the deployment's
    is, so that its SQL stays as it is.

    ``uri``: the address of :mod:`airflow_barrier.api.iceberg`. ``warehouse``: which barrier, as
    :class:`~airflow_barrier.reading.catalog_pins.Warehouse` parses it.

    >>> found = reader_conf(Settings.embedded("/data"), "http://localhost:8765/iceberg/prod", "shopping@b12")
    >>> found.conf["spark.sql.catalog.lake.warehouse"]
    'shopping@b12'
    """
    catalog = f"spark.sql.catalog.{settings.spark_catalog}"
    conf = {
        "spark.jars.packages": (spark or installed_spark()).iceberg_runtime,
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "rest",
        f"{catalog}.uri": uri,
        f"{catalog}.warehouse": warehouse,
        # A cached table asks for nothing, and what asks for nothing is held no longer.
        f"{catalog}.cache-enabled": "false",
    }
    token = f"where callers have tokens: {catalog}.token  <a token of yours>"
    return SparkConf(conf, {}, (token, *_about_storage(settings, catalog)))


def _about_guard(spark: SparkVersion) -> tuple[str, ...]:
    if not needs_guard(spark.number):
        return ()
    return (
        f"Spark {spark.number} needs airflow-barrier-guard.jar in its folder jars, or in spark.jars, see "
        "python -m airflow_barrier.spark.guard; operators on a worker's own Spark bring it along",
    )


def _about_storage(settings: Settings, catalog: str) -> tuple[str, ...]:
    scheme = urlsplit(settings.warehouse).scheme
    if scheme in _PLAIN:
        return ()
    return (
        f"Spark needs a package, credentials and {catalog}.io-impl for {scheme}:// as well, "
        "see https://iceberg.apache.org/docs/latest/aws/ and its neighbours",
    )


def properties_of(conf: Mapping[str, str]) -> str:
    """The lines of a properties file, as spark-submit reads it.

    >>> properties_of({"spark.sql.catalog.lake.type": "rest"})
    'spark.sql.catalog.lake.type  rest\\n'
    """
    width = max(map(len, conf), default=0)
    return "".join(f"{name:{width}}  {value}\n" for name, value in conf.items())
