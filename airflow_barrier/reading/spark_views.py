"""Spark's views: the text of those that it keeps and where they were made, and what temporary ones read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import Dialect
from sqlglot.tokenizer_core import TokenType

from airflow_barrier.protocol.errors import UnpinnableError
from airflow_barrier.reading._dialects import PinningDialect
from airflow_barrier.reading._names import Parts
from airflow_barrier.reading.rewriting import ABOUT, Place, View
from airflow_barrier.spark.identifiers import parts_of, quoted

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

_PLACE = "View Catalog and Namespace"
#: What begins the details of Iceberg's views; Spark's own are a table's, of type VIEW.
_OF_A_VIEW = "# Detailed View Information"
_OF_A_TABLE = "# Detailed Table Information"
#: A table in the text of a plan: `RelationV2[id#1, price#2] lake.shop.price VERSION AS OF '7'`
_RELATION = "RelationV2["
#: What it is of: `+- SubqueryAlias lake.shop.price`
_NAMED = re.compile(r"SubqueryAlias (\S.*)$", re.MULTILINE)
#: What a plan ends with that is longer than `spark.sql.maxPlanStringLength`.
_CUT = re.compile(r"\.\.\. \d+ more characters|Truncated plan of \d+ characters")


def view_in(spark: SparkSession, name: str, catalogs: frozenset[str]) -> View | None:
    """The view called ``name`` (quoted); None if that is a table, or nothing that is there.

    Raises UnpinnableError for a view that does not say where it was made, such as one that Hive made.
    """
    from pyspark.errors import AnalysisException

    try:
        described = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    except AnalysisException:
        return None  # Spark says of the query itself what is wrong with it
    said = _details(described)
    if _OF_A_VIEW not in said and said.get("Type") != "VIEW":
        return None
    catalog, *namespace = names_in(said.get(_PLACE, ""), f"view {name}")
    place = Place(catalog, tuple(namespace), catalogs=catalogs)
    if _OF_A_VIEW in said:
        place = PlaceOfIcebergs(catalog, tuple(namespace), catalogs=catalogs, view=name, reads=_read_by(spark, name))
    made = spark.sql(f"SHOW CREATE TABLE {name}").collect()[0][0]
    return View(_query_of(made), place, _columns(described))


@dataclass(frozen=True)
class PlaceOfIcebergs(Place):
    """The place of one of Iceberg's views. Spark says where it lies, and not where it was made: what names in ``view``
    (quoted) lead to is found among the tables and views that it ``reads``."""

    view: str = ""
    reads: frozenset[Parts] = frozenset()

    def full_name(self, parts: Parts, catalog: str, dialect: PinningDialect) -> Parts:
        if super().full_name(parts, catalog, dialect) == parts:
            return parts
        found = [name for name in self.reads if _ends_with(name, parts)]
        if len(found) != 1:
            may_be = " or ".join(sorted(quoted(*name) for name in found)) or "any"
            raise UnpinnableError(  # safety: names-lead-from-a-known-place
                f"view {self.view}: expected names in it that lead to one table each, found {quoted(*parts)}, which "
                f"may be {may_be}; write its whole name in the view"
            )
        return found[0]


def names_in(text: str, what: str) -> Parts:
    """The parts of a place as Spark says it, which quotes some.

    >>> names_in("lake.`my-shop`", "view v")
    ('lake', 'my-shop')
    """
    parts = parts_of(text)
    if not parts:
        raise UnpinnableError(  # safety: names-lead-from-a-known-place
            f"{what}: expected Spark to say which catalog and namespace names in it lead to, found {text!r}; make the "
            "view in Spark, put its query into yours, or write whole names"
        )
    return parts


def read_now(
    spark: SparkSession, view: str, snapshots: Mapping[str, int | None], catalog: str | None
) -> tuple[str, ...]:
    """Return which tables the temporary view ``view`` (quoted) reads at another snapshot than these; None: at any.

    Spark says it in the text of the view's plan only. ``catalog`` is that of the tables; None: whichever has a table of
    the name.
    """
    plan = _plan_of(spark, view).replace("`", "")
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


def _read_by(spark: SparkSession, view: str) -> frozenset[Parts]:
    """The whole names of what a view reads, which stand in the text of its plan."""
    names = {parts_of(name) for name in _NAMED.findall(_plan_of(spark, view))}
    return frozenset(name for name in names if len(name) > 1 and name != parts_of(view))


def _plan_of(spark: SparkSession, view: str) -> str:
    plan = str(spark.sql(f"EXPLAIN EXTENDED SELECT * FROM {view}").collect()[0][0])
    if _CUT.search(plan):
        raise UnpinnableError(  # safety: plans-are-whole
            f"view {view}: expected Spark to say all of what it reads, found a plan that is cut off; raise "
            "spark.sql.maxPlanStringLength"
        )
    return plan


def _ends_with(name: Parts, parts: Parts) -> bool:
    return [part.casefold() for part in name[-len(parts) :]] == [part.casefold() for part in parts]


def _columns(described: Sequence[Row]) -> tuple[str, ...]:
    """They come first, up to an empty line."""
    names = [row["col_name"] for row in described]
    return tuple(names[: names.index("")])


def _details(described: Sequence[Row]) -> dict[str, str]:
    """Return what is said of the whole, which comes after its columns."""
    names = [row["col_name"] for row in described]
    begins = next((at for at, name in enumerate(names) if name in (_OF_A_VIEW, _OF_A_TABLE)), len(names))
    return {row["col_name"]: row["data_type"] for row in described[begins:]}


def _query_of(statement: str) -> str:
    """Return what follows the first AS of ``CREATE VIEW … AS query`` that stands in no brackets."""
    depth = 0
    for token in Dialect.get_or_raise("spark").tokenize(statement):
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if token.token_type == TokenType.ALIAS and depth == 0:
            return statement[token.end + 1 :].strip()
    raise ValueError(f"expected CREATE VIEW ... AS ..., found {statement!r}")
