"""The text of Spark's views, and where they were made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlglot import Dialect
from sqlglot.tokenizer_core import TokenType

from airflow_barrier.reading.rewriting import Place, View

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

_PLACE = "View Catalog and Namespace"


def view_in(spark: SparkSession, name: str, catalogs: frozenset[str]) -> View | None:
    """The view called ``name`` (quoted); None if that is a table, or nothing that is there."""
    from pyspark.errors import AnalysisException

    try:
        described = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    except AnalysisException:
        return None  # Spark says of the query itself what is wrong with it
    said = {row["col_name"]: row["data_type"] for row in described}
    if _PLACE not in said:
        return None
    catalog, _, namespace = said[_PLACE].partition(".")
    made = spark.sql(f"SHOW CREATE TABLE {name}").collect()[0][0]
    return View(_query_of(made), Place(catalog, namespace, catalogs=catalogs), _columns(described))


def _columns(described: Sequence[Row]) -> tuple[str, ...]:
    """They come first, up to an empty line."""
    names = [row["col_name"] for row in described]
    return tuple(names[: names.index("")])


def _query_of(statement: str) -> str:
    """What follows the first AS of ``CREATE VIEW … AS query`` that stands in no brackets."""
    depth = 0
    for token in Dialect.get_or_raise("spark").tokenize(statement):
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if token.token_type == TokenType.ALIAS and depth == 0:
            return statement[token.end + 1 :].strip()
    raise ValueError(f"expected CREATE VIEW ... AS ..., found {statement!r}")
