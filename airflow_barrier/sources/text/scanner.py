"""The quick way to read lines of text: functions of SQL that the guard's jar brings (Texts.java in guard/).

Each gives a line's texts if it has understood every byte of the line, else NULL, which says nothing about the line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: ``(line, names...)``: the texts of a flat object's values, in the order of the names.
JSON_SCANNER = "airflow_barrier_json_texts"
#: ``(line, delimiter, quote, count)``: of a line without a quote; what is empty is NULL.
CSV_SCANNER = "airflow_barrier_csv_texts"


def can_scan(spark: SparkSession) -> bool:
    """Return whether Spark has these functions: the guard's jar is among its jars, and no older one."""
    return spark.catalog.functionExists(CSV_SCANNER)
