"""Rows with weights: a delta is a multiset in which a row may also be missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_barrier.spark.identifiers import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: +1: the row came, -1: the row went.
WEIGHT = "_weight"
#: The same in words: ``insert``, ``delete``.
CHANGE_TYPE = "_change_type"


def netted(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """``columns`` and a weight of +1 or -1, without pairs of equal rows of which one came and one went."""
    from pyspark.sql import functions as F  # noqa: N812

    total = frame.groupBy(*map(quoted, columns)).agg(F.sum(quoted(WEIGHT)).alias(WEIGHT))
    copies = F.expr(f"array_repeat(int(sign({quoted(WEIGHT)})), int(abs({quoted(WEIGHT)})))")
    return total.where(f"{quoted(WEIGHT)} <> 0").select(*map(quoted, columns), F.explode(copies).alias(WEIGHT))


def labelled(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """``columns``, then the change type that goes with the weight, then the weight."""
    from pyspark.sql import functions as F  # noqa: N812

    change_type = F.expr(f"CASE WHEN {quoted(WEIGHT)} > 0 THEN 'insert' ELSE 'delete' END").alias(CHANGE_TYPE)
    return frame.select(*map(quoted, columns), change_type, quoted(WEIGHT))
