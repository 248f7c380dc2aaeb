"""Changes of one table, as a Spark driver reads them from their files."""

from __future__ import annotations

from collections import defaultdict
from functools import reduce
from typing import TYPE_CHECKING

from airflow_barrier.protocol.changes import SEQUENCE
from airflow_barrier.protocol.ddl import Column, ddl_of, parse_ddl, quoted
from airflow_barrier.protocol.errors import SourceDataError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources.files import read_files
from airflow_barrier.sources.postgresql.segments import METADATA, files_of
from airflow_barrier.sources.postgresql.types import is_wider
from airflow_barrier.sources.text.csv_dialect import CsvDialect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def changes_of(spark: SparkSession, what: str, table: str, cut: Cut) -> DataFrame:
    """The changes of ``table`` in ``cut``, with the columns that it has at the cut's end: a column that came meanwhile
    is NULL before, one that went is left out.

    Raises SourceDataError if a column's type has become another one, which is not wider.
    """
    wanted = parse_ddl(cut.end["columns"][table])
    found: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for file in files_of(cut):
        if file.table == table:
            found[file.columns, file.after].append(file.uri)
    if not found:
        return spark.createDataFrame([], ddl_of([*wanted, *METADATA]))
    parts = []
    for (columns, after), uris in found.items():
        there = parse_ddl(columns)
        selected = [_as_wanted(f"{what}: table {table}", column, there) for column in wanted]
        rows = read_files(spark, uris, "parquet", (*there, *METADATA), CsvDialect.of({}), what)
        rows = rows.where(f"{SEQUENCE} > {after:d}") if after else rows
        parts.append(rows.selectExpr(*selected, *(column.name for column in METADATA)))
    return reduce(lambda left, right: left.unionByName(right), parts)


def _as_wanted(where: str, wanted: Column, there: tuple[Column, ...]) -> str:
    name = quoted(wanted.name)
    before = next((column for column in there if column.name == wanted.name), None)
    if before is None:
        return f"CAST(NULL AS {wanted.type}) AS {name}"
    if not is_wider(wanted.type, before.type):
        raise SourceDataError(  # safety: types-become-wider
            f"{where}: expected column {wanted.name} to become wider at most within an epoch, found {before.type}, and "
            f"then {wanted.type}; have it come as text (as_text) for a barrier, or replace the epoch by a revision "
            "(--sql, --file)"
        )
    return name if wanted.type == before.type else f"CAST({name} AS {wanted.type}) AS {name}"
