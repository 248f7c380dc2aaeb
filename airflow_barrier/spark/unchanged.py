"""Jobs whose code knows nothing of barriers: what their driver's conf says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow_barrier.spark.spec import SPEC_DIGEST, SPEC_KEY, SPEC_URI, EpochSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Iceberg reads and writes this branch of each table that has it and `write.wap.enabled`.
WAP_BRANCH = "spark.wap.branch"
_SNAPSHOT_PROPERTY = "spark.sql.iceberg.snapshot-property."
# What the guard is told; its source names them, too.
_CATALOG = "spark.airflow_barrier.catalog"
_READS = "spark.airflow_barrier.reads"
_WRITES = "spark.airflow_barrier.writes"
_PINNED = "spark.airflow_barrier.pinned"
_BRANCH = "spark.airflow_barrier.branch"
#: The property of a staged snapshot by which the guard says that it was there.
GUARD_MARK = "airflow-barrier.guard"
#: What this property says. Guards of another value refuse less, such as the first, which knew no branches.
GUARD_PROMISE = "4"


def unchanged_conf(spec: EpochSpec, spec_uri: str, digest: str, key: str | None = None) -> dict[str, str]:
    """The Spark conf that makes unchanged code read and write at this attempt's branch, and nothing else.

    Nothing that would change what the job computes is in it, such as a time zone.
    """
    pinned = [str(source.options["table"]) for source in spec.externals.values() if source.kind == "iceberg_table"]
    return {
        SPEC_URI: spec_uri,
        SPEC_DIGEST: digest,
        **({SPEC_KEY: key} if key else {}),
        WAP_BRANCH: spec.branch,
        **{f"{_SNAPSHOT_PROPERTY}{key}": value for key, value in spec.stamp.properties().items()},
        _CATALOG: spec.catalog,
        _READS: _listed({*spec.inputs, *spec.bases}),
        _WRITES: _listed(spec.bases),
        _BRANCH: spec.branch,  # beside WAP_BRANCH, which the job may set or unset
        **({_PINNED: _listed(pinned)} if pinned else {}),
    }


def leave_the_branch(spark: SparkSession) -> None:
    """Take the branch out of the session conf of a driver that reads the epoch spec: it names branches itself."""
    for key in (WAP_BRANCH, _CATALOG, _READS, _WRITES, _PINNED, _BRANCH):
        spark.conf.unset(key)


def _listed(tables: Iterable[str]) -> str:
    return ",".join(quote(table) for table in sorted(tables))
