"""A session's conf as this package sets it: in one request, and told apart from what a job sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_own = ContextVar("own", default=False)


def conf_of(spark: SparkSession) -> Mapping[str, str]:
    """All of the session's conf; before Spark 4.0 pyspark has no call for it."""
    found: Mapping[str, str] | None = getattr(spark.conf, "getAll", None)
    return {row.key: row.value for row in spark.sql("SET").collect()} if found is None else found


def set_conf(spark: SparkSession, conf: Mapping[str, str]) -> None:
    """Set all of ``conf``, in one request if the session is Spark Connect's, for which pyspark has no public call."""
    together = getattr(spark.conf, "_set_all", None)
    with _our_own():
        if together is not None:
            together(dict(conf), silent=False)
            return
        for key, value in conf.items():
            spark.conf.set(key, value)


def unset_conf(spark: SparkSession, names: Iterable[str]) -> None:
    """Take out what :func:`set_conf` has set where nothing was set before."""
    with _our_own():
        for name in names:
            spark.conf.unset(name)


def is_our_own() -> bool:
    """Return whether the conf that is being set, in this thread, is that of this package."""
    return _own.get()


@contextmanager
def _our_own() -> Iterator[None]:
    before = _own.set(True)
    try:
        yield
    finally:
        _own.reset(before)
