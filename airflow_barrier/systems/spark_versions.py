"""The versions of Spark that jobs run on, and the packages with which each one is tested."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from airflow_barrier.protocol.errors import ConfigurationError


@dataclass(frozen=True)
class SparkVersion:
    """A minor version, with the releases of what Maven has for it. ``parts``: of Spark's own packages: not its last
    release, whose parts are not in all of Maven Central's mirrors.
    """

    number: str
    scala: str
    iceberg: str
    parts: str

    @property
    def iceberg_runtime(self) -> str:
        """Maven coordinates of Iceberg's runtime."""
        return self.iceberg_module(f"iceberg-spark-runtime-{self.number}_{self.scala}")

    def iceberg_module(self, name: str) -> str:
        """Return Maven coordinates of one of Iceberg's modules, of the runtime's version."""
        return f"org.apache.iceberg:{name}:{self.iceberg}"

    @property
    def source_packages(self) -> Mapping[str, str]:
        """Maven coordinates by the name of Spark's format."""
        return {name: self._part(part) for name, part in _SOURCES.items()}

    def _part(self, name: str) -> str:
        return f"org.apache.spark:{name}_{self.scala}:{self.parts}"


#: Formats of Spark that are packages of their own.
_SOURCES = {"avro": "spark-avro", "kafka": "spark-sql-kafka-0-10"}
SPARK_VERSIONS = {
    each.number: each
    for each in (
        SparkVersion("3.5", scala="2.12", iceberg="1.12.0", parts="3.5.7"),
        SparkVersion("4.0", scala="2.13", iceberg="1.11.0", parts="4.0.0"),
        SparkVersion("4.1", scala="2.13", iceberg="1.12.0", parts="4.1.1"),
    )
}
OLDEST, *_, NEWEST = SPARK_VERSIONS
#: The guard, as a name in Spark's conf.
GUARD_CLASS = "airflow_barrier.guard.Guard"
_MINOR = re.compile(r"(\d+)\.(\d+)")


def spark_version(text: str) -> SparkVersion:
    """The version of which ``text`` is a release. Raises ConfigurationError for a Spark that nothing is tested with.

    >>> spark_version("3.5.9").iceberg_runtime
    'org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.12.0'
    """
    found = _MINOR.match(text)
    known = SPARK_VERSIONS.get(found[0]) if found else None
    if known is None:
        raise ConfigurationError(f"expected Spark {', '.join(SPARK_VERSIONS)}, found {text}: take one of these")
    return known


def installed_spark() -> SparkVersion:
    """The version of the package pyspark that this process has loaded, or would load; else the newest known here."""
    try:
        return spark_version(_pyspark())
    except (PackageNotFoundError, ConfigurationError):
        return SPARK_VERSIONS[NEWEST]


def runs_before(number: str) -> bool:
    """Return whether the pyspark of this process is of a version before ``number``: ``4.0``."""
    return is_before(_pyspark(), number)


def _pyspark() -> str:
    if "pyspark" in sys.modules:  # a driver's is that of Spark's own folder, whatever pip has installed
        return str(sys.modules["pyspark"].__version__)
    try:
        return version("pyspark")
    except PackageNotFoundError:
        return version("pyspark-client")


def is_too_old(text: str) -> bool:
    """Return whether no job runs on a Spark of this version; a text that is no version may be any.

    >>> is_too_old("3.4.4"), is_too_old("3.5.6"), is_too_old("4.2.0-SNAPSHOT"), is_too_old("unknown")
    (True, False, False, False)
    """
    return is_before(text, OLDEST)


def needs_guard(text: str) -> bool:
    """Return whether jobs on a Spark of this version need the guard's jar, whichever they are.

    Iceberg for Spark 3.5 forgets a session's snapshot properties, by which it is known whose work a snapshot is.
    """
    return is_before(text, "4.0")


def check_version(text: str | None, who: str) -> None:
    """Raises ConfigurationError, in which ``who`` comes first, for a Spark that is too old; None may be any."""
    if text is not None and is_too_old(text):
        raise ConfigurationError(  # safety: spark-is-new-enough
            f"{who}: expected Spark {OLDEST} or newer, found {text}: the guard does not run in it; run the job on a "
            "newer Spark"
        )


def is_before(text: str, number: str) -> bool:
    """Return whether ``text`` is a version of Spark before ``number``: ``4.0``."""
    found = _MINOR.match(text)
    return found is not None and (int(found[1]), int(found[2])) < tuple(map(int, number.split(".")))
