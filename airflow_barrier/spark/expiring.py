"""Taking snapshots out of a table by Spark, which deletes the files that no other snapshot has on its executors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_barrier.protocol.ddl import literal
from airflow_barrier.protocol.errors import ExpiryError
from airflow_barrier.spark.identifiers import quoted, table_name
from airflow_barrier.spark.procedures import call

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class ExpiredFiles:
    """The numbers of files of each kind that an expiry deleted."""

    data: int
    deletes: int
    manifests: int

    def __str__(self) -> str:
        return f"{self.data} data files, {self.deletes} delete files, {self.manifests} manifests and lists of them"


def expire_snapshots(session: SparkSession, catalog: str, table: str, snapshot_ids: Sequence[int]) -> ExpiredFiles:
    """Take exactly these snapshots out of ``table`` (``namespace.table``), and delete the files that only they have.

    Refused by Iceberg, with nothing changed, if a ref names one of them by now. Beside them goes only a ref to which
    somebody has given an age (``max-ref-age-ms``) that is over. Raises
    :class:`~airflow_barrier.protocol.errors.ExpiryError` and, if the server went away,
    :class:`~airflow_barrier.protocol.errors.SparkUnavailableError`.

    >>> expire_snapshots(spark, "lake", "shop.shopping", [4711])  # doctest: +SKIP
    ExpiredFiles(data=2, deletes=0, manifests=3)
    """
    if not snapshot_ids:
        return ExpiredFiles(0, 0, 0)
    name = literal(table_name(catalog, table))
    ids = ", ".join(f"{int(snapshot_id)}L" for snapshot_id in snapshot_ids)
    statement = (
        # Ids come on top of what is older than the age, so the age has to reach nothing.
        f"CALL {quoted(catalog)}.system.expire_snapshots(table => {name}, snapshot_ids => ARRAY({ids}), "
        "older_than => TIMESTAMP '1970-01-01 00:00:00 UTC', stream_results => true)"
    )
    row = call(session, statement, f"expiry of {len(snapshot_ids)} snapshots of {table}", ExpiryError)
    return ExpiredFiles(
        data=row["deleted_data_files_count"],
        deletes=row["deleted_position_delete_files_count"] + row["deleted_equality_delete_files_count"],
        manifests=row["deleted_manifest_files_count"] + row["deleted_manifest_lists_count"],
    )
