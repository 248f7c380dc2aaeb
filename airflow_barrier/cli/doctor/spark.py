"""Spark, by its connections. A new check of a Connect server is a function, and its place in :data:`ON_CONNECT`."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_barrier.cli.doctor.check import Case, Finding, fail, ok, skipped, warn
from airflow_barrier.cli.doctor.deployment import known
from airflow_barrier.protocol.errors import BarrierError, ConfigurationError
from airflow_barrier.systems.spark_versions import GUARD_CLASS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_barrier.coordinator.settings import Settings

DEFAULT_CONN_ID = "spark_connect_default"
#: Seconds for a server to accept the connection.
_SECONDS = 10.0
#: Where the operators are whose connection is Spark's.
_BY_SPARK = ("airflow_barrier.operators.epoch", "airflow.providers.apache.spark.")

#: A sentence about what is fine; raises ConfigurationError, or yields a Finding of its own.
OnConnect = Callable[[str, "SparkSession", Case], Iterator[Finding]]


def spark(case: Case) -> Iterator[Finding]:
    jobs = [task for group in case.groups for task in group if task.task_id in group.jobs_by_task]
    named = case.spark_conn_ids or _named_by(jobs)
    if jobs and not named:  # they run on what other connections name: Livy's, Kubernetes's
        yield skipped("Spark", "the DAGs' jobs name no connection of it; name one with --spark-conn-id")
        return
    for conn_id in named or [DEFAULT_CONN_ID]:
        about = f"Spark {conn_id}"
        try:
            yield from _connection(about, conn_id, case)
        except BarrierError as error:
            yield fail(about, str(error))


def _named_by(jobs: Sequence[Any]) -> list[str]:
    """The connections of jobs whose operators are ours, or those of Airflow's Spark provider."""
    by_spark = [job for job in jobs if any(cls.__module__.startswith(_BY_SPARK) for cls in type(job).__mro__)]
    named = (getattr(job, name, None) for job in by_spark for name in ("spark_conn_id", "conn_id", "_conn_id"))
    return sorted({conn_id for conn_id in named if conn_id})


def _connection(about: str, conn_id: str, case: Case) -> Iterator[Finding]:
    from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
    from airflow.providers.common.compat.sdk import AirflowNotFoundException
    from airflow.sdk import BaseHook

    from airflow_barrier.hooks.barrier import look_for_connections

    look_for_connections()
    try:
        kind = BaseHook.get_connection(conn_id).conn_type
    except AirflowNotFoundException:
        raise ConfigurationError(
            f"expected an Airflow connection of that id, found none; define it by: airflow connections add {conn_id} "
            "--conn-type spark_connect --conn-host localhost --conn-port 15002, or name another with --spark-conn-id"
        ) from None
    if kind == "spark_connect":
        yield from _on_connect(about, SparkConnectHook(conn_id).get_connection_url(), case)
    elif kind == "spark":
        yield from _submit(about)
    else:
        raise ConfigurationError(f"expected the type spark_connect or spark, found {kind}; correct the connection")


def _submit(about: str) -> Iterator[Finding]:
    """Yield what can be told without starting a driver on a cluster."""
    import shutil

    from airflow_barrier.operators.handover.local_spark import installed_version
    from airflow_barrier.systems.spark_versions import check_version, spark_version

    binary = shutil.which("spark-submit")
    if binary is None:
        raise ConfigurationError(
            "expected spark-submit on PATH, found none; put Spark's bin folder, or that of the virtual environment "
            "with pyspark, on the PATH of workers"
        )
    version = installed_version(binary)
    if version is not None:
        check_version(version, binary)
        try:
            spark_version(version)
        except ConfigurationError as error:
            yield warn(about, f"{binary}: {error}, on which this package is tested")
    yield ok(
        about,
        f"spark-submit is {binary}, of Spark {version or 'of an unknown version'}; its jars and its catalog are seen "
        "by the job itself, when it runs",
    )


def _on_connect(about: str, url: str, case: Case) -> Iterator[Finding]:
    from airflow_barrier.spark.connect import connect_session, stop_session

    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # each of Spark's errors, as pages of JSON
    session: Any = connect_session(url, timeout=_SECONDS)
    session.release_session_on_close = False  # else a server that hangs holds this process up at its end
    try:
        for look in ON_CONNECT:
            found = list(look(about, session, case))
            yield from found
            if any(one.verdict.value == "FAIL" for one in found):
                return  # what comes after it says the same again, in worse words
    finally:
        stop_session(session)


# --- what is looked at on a Spark Connect server --------------------------------------------------


def _version(about: str, session: SparkSession, case: Case) -> Iterator[Finding]:
    import pyspark

    ours, theirs = pyspark.__version__, session.version
    if ours.split(".")[:2] != theirs.split(".")[:2]:
        yield fail(
            about,
            f"expected Spark {ours}, the version of the package pyspark here, found {theirs}; run a server of this "
            "version, since others speak another protocol",
        )
    elif ours != theirs:
        yield warn(about, f"expected Spark {ours}, the version of the package pyspark here, found {theirs}")
    else:
        yield ok(about, f"answers; Spark {theirs}, as here")


def _catalog(about: str, session: SparkSession, case: Case) -> Iterator[Finding]:
    """Asking for Iceberg's version has Spark load the catalog, with its jars and its database."""
    from airflow_barrier.spark.catalog_errors import SPARK_CONF, catalog_error
    from airflow_barrier.spark.connect import first_line
    from airflow_barrier.spark.identifiers import quoted

    name = known(case).spark_catalog
    if session.conf.get(f"spark.sql.catalog.{name}", None) is None:
        others = sorted(_catalogs(session))
        also = f", but {', '.join(others)}" if others else ""
        raise ConfigurationError(
            f"expected the connection's spark_catalog, {name}, in Spark's conf (spark.sql.catalog.{name}), "
            f"found none{also}; {SPARK_CONF}"
        )
    try:
        version = session.sql(f"SELECT {quoted(name, 'system', 'iceberg_version')}()").collect()[0][0]
    except Exception as error:
        known_one = catalog_error(error, name)
        raise known_one or ConfigurationError(
            f"Spark's catalog {name}: expected one of Iceberg's, found that it does not work: {first_line(error)}; "
            f"{SPARK_CONF}"
        ) from error
    yield ok(about, f"catalog {name} works; Iceberg {version}")


def _same_catalog(about: str, session: SparkSession, case: Case) -> Iterator[Finding]:
    """Compare by a table where there is one: both have to find its metadata in the same place."""
    from contextlib import closing

    from airflow_barrier.coordinator.deployment import tables_of
    from airflow_barrier.hooks.barrier import has_catalog
    from airflow_barrier.spark.catalog_errors import SPARK_CONF, catalog_error
    from airflow_barrier.spark.identifiers import table_name

    settings = known(case)
    name = settings.spark_catalog
    if other := _other_address(session, settings):
        yield fail(about, f"catalog {name}: {other}; {SPARK_CONF}")
        return
    table = None
    if has_catalog(settings):
        with closing(tables_of(settings)) as tables:
            catalog = tables.catalog
            listed = (each for namespace in catalog.list_namespaces() for each in catalog.list_tables(namespace))
            table = next((".".join(each) for each in listed), None)
            ours = tables.load(table).metadata_location if table else ""
    if table is None:
        yield ok(about, f"catalog {name} is at the address of the deployment's, which has no tables yet")
        return
    try:
        rows = session.sql(f"SELECT file FROM {table_name(name, table, 'metadata_log_entries')}").collect()
    except Exception as error:
        raise catalog_error(error, name) or error from error
    theirs = str(rows[-1][0])
    if _folder(ours) != _folder(theirs):
        yield fail(
            about,
            f"catalog {name}: expected table {table} in {_folder(ours)}, found it in {_folder(theirs)}: it is another "
            f"catalog than the deployment's; {SPARK_CONF}",
        )
    else:
        yield ok(about, f"catalog {name} is the deployment's: both find {table} in the same place")


def _conf(about: str, session: SparkSession, case: Case) -> Iterator[Finding]:
    from airflow_barrier.coordinator.spark_conf import COMPILED, EXTENSIONS, MANY_COMPILED
    from airflow_barrier.spark.catalog_errors import SPARK_CONF

    catalog = f"spark.sql.catalog.{known(case).spark_catalog}"
    if EXTENSIONS not in (session.conf.get("spark.sql.extensions", None) or ""):
        yield warn(about, f"expected {EXTENSIONS} in spark.sql.extensions, found it missing; {SPARK_CONF}")
    cached = session.conf.get(f"{catalog}.cache-enabled", None)
    if cached != "false":
        yield warn(
            about,
            f"expected {catalog}.cache-enabled=false, found {cached or 'nothing, which is true'}: a session would not "
            f"see what others commit meanwhile; {SPARK_CONF}",
        )
    entries = int(session.conf.get(COMPILED) or 0)
    if entries < int(MANY_COMPILED):
        yield warn(
            about,
            f"expected {COMPILED}={MANY_COMPILED}, found {entries}: sessions live on, but what one barrier compiles is "
            f"thrown away by the next, which costs about half of the CPU; {SPARK_CONF}",
        )


def _guard(about: str, session: SparkSession, case: Case) -> Iterator[Finding]:
    from pyspark.errors import AnalysisException

    from airflow_barrier.sources.text.scanner import can_scan
    from airflow_barrier.spark.guard import guard_jar

    try:
        session.sql(f"SELECT reflect('{GUARD_CLASS}', 'nothing')").collect()
    except AnalysisException as error:  # both ways: Spark looks for the class, then for a method of it
        if (error.getCondition() or "").endswith("UNEXPECTED_CLASS_TYPE"):
            yield warn(
                about,
                "expected the guard among the server's jars, found none: unchanged jobs on this server "
                "(@task.pyspark) need it, and without it JSON and CSV are read the slower way; start the "
                f"server with spark.jars={guard_jar()}",
            )
            return
    if not can_scan(session):
        yield warn(
            about,
            "expected the guard of this version among the server's jars, found one that reads no text: JSON "
            f"and CSV are read the slower way; start the server with spark.jars={guard_jar()}",
        )
        return
    yield ok(about, "the guard of unchanged jobs is there, and reads JSON and CSV")


def _packages(about: str, session: SparkSession, case: Case) -> Iterator[Finding]:
    """Look for the packages of the DAGs' sources."""
    from airflow_barrier.sources import source_of
    from airflow_barrier.sources.port import Packaged
    from airflow_barrier.sources.spark_packages import look_for_package

    declared = [external for group in case.groups for job in group.fragment.jobs for external in job.externals]
    sources = [source for source in map(source_of, declared) if isinstance(source, Packaged)]
    for name in sorted({name for source in sources for name in source.packages}):
        try:
            look_for_package(session, name)
        except ConfigurationError as error:
            yield fail(about, str(error))
            continue
        yield ok(about, f"the package of Spark's format {name} is there, which sources of the DAGs need")


#: In this order; the first one that fails ends it.
ON_CONNECT: tuple[OnConnect, ...] = (_version, _catalog, _same_catalog, _conf, _packages, _guard)


# --- addresses ------------------------------------------------------------------------------------


def _catalogs(session: Any) -> list[str]:
    names = (re.fullmatch(r"spark\.sql\.catalog\.(\w+)", key) for key in session.conf.getAll)
    return [name[1] for name in names if name]


def _other_address(session: SparkSession, settings: Settings) -> str | None:
    """Return what differs between the catalog in Spark's conf and the deployment's, as far as both say it."""
    from airflow_barrier.coordinator.settings import parsed_url
    from airflow_barrier.tables import CATALOGS, catalog_at

    conf = f"spark.sql.catalog.{settings.spark_catalog}"
    theirs = session.conf.get(f"{conf}.uri", None) or ""
    if not theirs:
        return None
    if catalog_at(settings.catalog_uri) is not CATALOGS["sql"]:
        if (
            theirs.rstrip("/") == settings.catalog_uri.rstrip("/")
            or urlsplit(theirs).path == urlsplit(settings.catalog_uri).path
        ):
            return None  # hosts have several names
        return f"expected {conf}.uri={_shown(settings.catalog_uri)}, found {_shown(theirs)}"
    if not theirs.startswith("jdbc:"):
        return f"expected {conf}.uri to be a JDBC URL, as of the deployment's SQL catalog, found {_shown(theirs)}"
    ours = parsed_url(settings.catalog_uri)
    database = ours.database or ""
    found = re.match(r"jdbc:(\w+):(?://[^/?;]*/)?(?:file:)?([^?;]*)", theirs)
    if found is None or found[1] != ours.get_backend_name():
        return f"expected {conf}.uri of {ours.get_backend_name()}, found {_shown(theirs)}"
    if found[2] != database and not (found[1] == "sqlite" and _same_file(found[2], database)):
        return f"expected {conf}.uri to name the database {database}, as the connection does, found {_shown(theirs)}"
    if settings.catalog_name != settings.spark_catalog:
        return (
            f"expected the connection's catalog_name to be {settings.spark_catalog}, since Iceberg in Spark lists "
            f"tables under the catalog's name there, found {settings.catalog_name}"
        )
    return None


def _same_file(one: str, other: str) -> bool:
    import os

    return os.path.realpath(one) == os.path.realpath(other)


def _shown(url: str) -> str:
    """Return the address without options and user: a password may stand in either."""
    return re.sub(r"//[^/@]*@", "//", re.split(r"[?;]", url)[0])


def _folder(metadata: str) -> str:
    """Return where a table lies; of a local file by its path, which is written in several ways."""
    return re.sub(r"^file:/*", "/", metadata.rpartition("/metadata/")[0])
