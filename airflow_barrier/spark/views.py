"""DataFrames under a name that every SQL statement of the session can use."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_barrier.spark.identifiers import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def view_of(frame: DataFrame, name: str) -> str:
    """Make temporary view ``name`` of ``frame`` in its session and return the view's quoted name.

    In SQL ``MERGE INTO`` Spark 4.1 cannot plan a view of a DataFrame that reads an incremental scan ("No plan for
    TableReference"); it can plan a view, written in SQL, of that view. So there are two.
    """
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)  # Spark Connect takes letters of ASCII only
    inner, outer = f"{plain}__frame", plain
    frame.createOrReplaceTempView(inner)
    frame.sparkSession.sql(f"CREATE OR REPLACE TEMPORARY VIEW {quoted(outer)} AS SELECT * FROM {quoted(inner)}")
    return quoted(outer)
