"""Spark's views: the text of those that it keeps and where they were made, and what temporary ones read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sqlglot import Dialect
from sqlglot.tokenizer_core import TokenType

from airflow_barrier.reading.rewriting import ABOUT, Place, View

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

_PLACE = "View Catalog and Namespace"
#: A table in the text of a plan: `RelationV2[id#1, price#2] lake.shop.price VERSION AS OF '7'`
_RELATION = "RelationV2["


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


def read_now(
    spark: SparkSession, view: str, snapshots: Mapping[str, int | None], catalog: str | None
) -> tuple[str, ...]:
    """Which tables the temporary view ``view`` (quoted) reads at another snapshot than these; None: at any.

    Spark says it in the text of the view's plan only. ``catalog`` is that of the tables; None: whichever has a table of
    the name.
    """
    plan = spark.sql(f"EXPLAIN EXTENDED SELECT * FROM {view}").collect()[0][0].replace("`", "")
    relations = [line for line in plan.splitlines() if _RELATION in line]
    begins = r"[^.\s]+" if catalog is None else re.escape(catalog)
    found = []
    for table, snapshot in snapshots.items() if relations else ():
        named = re.compile(rf"\] {begins}\.{re.escape(table.replace('`', ''))}(?P<rest>[ .].*)?$", re.IGNORECASE)
        rests = {match["rest"] for line in relations if (match := named.search(line))}
        allowed = {f" VERSION AS OF '{snapshot}'", *(f".{about}" for about in ABOUT)}
        if rests - allowed:
            found.append(table)
    return tuple(found)


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
