"""The Spark that is installed where the task runs."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from airflow_barrier.systems.spark_versions import GUARD_CLASS, needs_guard

_JARS, _EXTENSIONS = "spark.jars", "spark.sql.extensions"
#: A line of a properties file of Java's, as far as Spark's are written.
_PROPERTY = re.compile(r"\s*(?P<key>[^#!\s=:][^\s=:]*)\s*[=:\s]\s*(?P<value>.*?)\s*\Z")
_CORE = re.compile(r"spark-core_[\d.]+-(?P<version>\d[^/]*)\.jar\Z")


def installed_version(binary: str) -> str | None:
    """The version of the Spark that ``binary`` starts, or None if it does not show in the files: no JVM is started."""
    for home in _homes(binary):
        for jar in (home / "jars").glob("spark-core_*.jar"):
            if found := _CORE.search(jar.name):
                return found["version"]
    return None


def _homes(binary: str) -> Iterator[Path]:
    """Yield where Spark's own launcher looks, in its order."""
    if "SPARK_HOME" in os.environ:
        yield Path(os.environ["SPARK_HOME"])
    if path := shutil.which(binary):
        yield Path(path).resolve().parents[1]
    spec = find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent


def with_guard(conf: Mapping[str, Any], jar: str, version: str | None, defaults: Mapping[str, str]) -> dict[str, Any]:
    """The conf of a driver of this ``version`` that has the guard as well, whose jar is ``jar``.

    What ``conf`` names takes the place of ``defaults``, so their jars and extensions go along.

    >>> with_guard({"spark.jars": "a.jar"}, "guard.jar", "4.1.3", {})
    {'spark.jars': 'a.jar,guard.jar'}
    """
    given = {**defaults, **conf}
    guarded = {**conf, _JARS: _with(given.get(_JARS), jar)}
    if version is not None and needs_guard(version):  # a session that pyspark 3.5 makes looks for no extensions itself
        guarded[_EXTENSIONS] = _with(given.get(_EXTENSIONS), GUARD_CLASS)
    return guarded


def spark_defaults(binary: str, properties_file: str | None = None) -> dict[str, str]:
    """Return what Spark's properties file says to a driver of ``binary``: ``properties_file``, or its own one."""
    file = Path(properties_file) if properties_file else _conf_folder(binary) / "spark-defaults.conf"
    lines = file.read_text().splitlines() if file.is_file() else []
    found = (_PROPERTY.match(line) for line in lines)
    return {line["key"]: line["value"] for line in found if line is not None}


def _conf_folder(binary: str) -> Path:
    named = os.environ.get("SPARK_CONF_DIR")
    return Path(named) if named else next(_homes(binary), Path()) / "conf"


def _with(listed: str | None, one: str) -> str:
    each = [text.strip() for text in (listed or "").split(",") if text.strip()]
    return ",".join([*each, *([] if one in each else [one])])
