"""Rewriting small files into larger ones by Spark, on an attempt branch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_barrier.protocol.compaction import OPTIONS
from airflow_barrier.protocol.ddl import literal
from airflow_barrier.protocol.errors import CompactionError
from airflow_barrier.spark.identifiers import quoted, table_name
from airflow_barrier.spark.procedures import call

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class RewrittenFiles:
    """The numbers of data files before and after a compaction, and the bytes of those before."""

    before: int
    after: int
    bytes: int

    def __str__(self) -> str:
        return (
            f"{self.before} data files ({self.bytes:,} bytes) are {self.after} now" if self.before else "nothing to do"
        )


def rewrite_files(
    session: SparkSession, catalog: str, table: str, branch: str, options: Mapping[str, str]
) -> RewrittenFiles:
    """Put the rows of ``branch`` of ``table`` (``namespace.table``) into fewer files, on that branch; no row changes.

    ``options`` are those of Iceberg's ``rewrite_data_files``; where they say nothing, those hold by which it does away
    with what :mod:`airflow_barrier.protocol.compaction` counts. All of it is one snapshot, whose operation is
    `replace`, or none if there is nothing to do. Raises :class:`~airflow_barrier.protocol.errors.CompactionError` and,
    if the server went away, :class:`~airflow_barrier.protocol.errors.SparkUnavailableError`.

    >>> rewrite_files(spark, "lake", "shop.shopping", "barrier_...", {})  # doctest: +SKIP
    RewrittenFiles(before=12, after=1, bytes=40211)
    """
    given = ", ".join(literal(text) for pair in {**OPTIONS, **options}.items() for text in pair)
    statement = (
        f"CALL {quoted(catalog)}.system.rewrite_data_files(table => {literal(table_name(catalog, table))}, "
        f"branch => {literal(branch)}, options => map({given}))"
    )
    row = call(session, statement, f"compaction of {table}", CompactionError)
    return RewrittenFiles(
        row["rewritten_data_files_count"], row["added_data_files_count"], row["rewritten_bytes_count"]
    )
