"""`airflow-barrier spark-conf`"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from airflow_barrier.cli.commands.serve import PORT
from airflow_barrier.cli.connection import connection_option, settings
from airflow_barrier.cli.frame import DONE, Command
from airflow_barrier.cli.screen import answer
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.systems.spark_versions import SPARK_VERSIONS, installed_spark, is_before

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_barrier.coordinator.spark_conf import SparkConf


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=sorted(_FORMATS),
        default="properties",
        help="for spark-defaults.conf (default), a SparkSession in Python, or the command that starts a Spark Connect "
        "server",
    )
    parser.add_argument(
        "--with",
        dest="formats",
        action="append",
        choices=sorted(installed_spark().source_packages),
        default=[],
        help="with the package that Spark needs for such sources; may be given several times",
    )
    parser.add_argument(
        "--spark",
        choices=list(SPARK_VERSIONS),
        default=installed_spark().number,
        help="the version of Spark that reads the conf (default: that of the package pyspark here, %(default)s)",
    )
    parser.add_argument(
        "--reader",
        metavar="TOPOLOGY[@WHICH]",
        help="of a Spark that only reads, at one barrier: shopping, shopping@read_committed, shopping@b12, "
        "shopping@2026-11-01T00:00:00Z",
    )
    parser.add_argument(
        "--uri",
        help="with --reader: the address that serves catalogs (default: that of `airflow-barrier serve --iceberg` on "
        "this host; Airflow's API server has it at /barrier/iceberg/CONN_ID)",
    )


def _run(options: argparse.Namespace) -> int:
    if options.format == "connect" and is_before(options.spark, "4.0"):
        raise ConfigurationError(
            f"--format connect: expected Spark 4.0 or newer, found {options.spark}: jobs do not reach older ones by "
            "Spark Connect; let their operators say via='submit', and leave --format out"
        )
    if options.reader is not None:
        found = _of_reader(options)
    elif options.uri is not None:
        raise ConfigurationError("--uri: expected --reader, found none; say which barrier is read")
    else:
        from airflow_barrier.coordinator.spark_conf import spark_conf

        found = spark_conf(settings(options.conn_id), options.formats, SPARK_VERSIONS[options.spark])
    answer(options, found, lambda found, out: _show(options.format, found, out))
    return DONE


def _of_reader(options: argparse.Namespace) -> SparkConf:
    from airflow_barrier.coordinator.spark_conf import reader_conf
    from airflow_barrier.reading.catalog_pins import Warehouse

    if options.formats:
        raise ConfigurationError("--with: expected no --reader, which reads no sources, found one; leave out either")
    Warehouse.parse(options.reader)
    uri = options.uri or f"http://localhost:{PORT}/iceberg/{options.conn_id}"
    return reader_conf(settings(options.conn_id), uri, options.reader, SPARK_VERSIONS[options.spark])


def _show(layout: str, found: SparkConf, out: Console) -> None:
    remarks = "".join(f"# {remark}\n" for remark in found.remarks)
    out.file.write(_FORMATS[layout](found) + remarks)  # as it is, for a file: no wrapping, no colours


def _properties(found: SparkConf) -> str:
    from airflow_barrier.coordinator.spark_conf import properties_of

    return properties_of(found.conf) + "".join(f"# {name}  <{what}>\n" for name, what in found.secrets.items())


def _python(found: SparkConf) -> str:
    conf = found.with_places_for_secrets
    lines = "".join(f"    .config({json.dumps(name)}, {json.dumps(value)})\n" for name, value in conf.items())
    return (
        f"from pyspark.sql import SparkSession\n\nspark = (\n    SparkSession.builder\n{lines}    .getOrCreate()\n)\n"
    )


def _connect(found: SparkConf) -> str:
    from airflow_barrier.project.local import CONNECT_SERVER
    from airflow_barrier.spark.guard import guard_jar

    conf = [f"--conf {shlex.quote(f'{name}={value}')}" for name, value in found.with_places_for_secrets.items()]
    parts = [f"spark-submit --class {CONNECT_SERVER}", f"--jars {shlex.quote(guard_jar())}", *conf, "spark-internal"]
    return " \\\n  ".join(parts) + "\n"


_FORMATS: Mapping[str, Callable[[SparkConf], str]] = {
    "properties": _properties,
    "python": _python,
    "connect": _connect,
}

SPARK_CONF = Command(
    "spark-conf",
    "Print the Spark conf of a deployment. Spark has to know the catalog in which its tables are; passwords are left "
    "for you to fill in.",
    (_options, connection_option),
    _run,
    examples=(
        *("", "--with kafka", "--reader shopping@read_committed", "--spark 3.5"),
        "--conn-id barrier_prod --format connect",
    ),
)
