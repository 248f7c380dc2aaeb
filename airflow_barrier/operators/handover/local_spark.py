"""The Spark that is installed where the task runs."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

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


def with_jar(jars: str | None, jar: str) -> str:
    """A comma-separated list of jars, with one more.

    >>> with_jar("a.jar", "b.jar"), with_jar(None, "b.jar")
    ('a.jar,b.jar', 'b.jar')
    """
    listed = [each.strip() for each in (jars or "").split(",") if each.strip()]
    return ",".join([*listed, *([] if jar in listed else [jar])])
