"""Spark over one consistent answer: unchanged SQL, and tables as DataFrames."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from sqlglot import exp

from airflow_barrier.reading.answer import Answer
from airflow_barrier.reading.rewriting import Place, pins_of
from airflow_barrier.reading.spark_views import view_in
from airflow_barrier.spark.identifiers import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_CATALOG = "spark.sql.catalog."
#: What Spark calls its own.
_OWN = "spark_catalog"


class ConsistentSpark:
    """What a Spark session (classic or Connect) reads at the barrier of a consistent session.

    :meth:`sql` takes SQL as it is run elsewhere, and :meth:`table` a table for the DataFrame API. Views are read at the
    barrier too; temporary views are what they were made of, and tables outside the topology are read as they are now:
    both are left alone, and a log line says so. The metadata tables `__META_...` can be read along: as they are when
    the query is handed in, since they tell of all barriers. DataFrames are lazy: use them before the session ends,
    which alone keeps their snapshots from being deleted.

    >>> with consistent_session(deployment, "shopping") as session:  # doctest: +SKIP
    ...     session.spark(spark).sql("SELECT * FROM lake.shop.amount JOIN lake.shop.price USING (itemId)").show()
    """

    def __init__(self, answer: Answer, spark: SparkSession) -> None:
        self._answer = answer
        self._spark = spark

    def sql(self, query: str, args: dict[str, Any] | list[Any] | None = None) -> DataFrame:
        """The query's rows at the barrier. ``args`` as for Spark's ``sql``.

        Raises NotAReadError (writes), SqlSyntaxError, UnpinnableError, UnknownTableError (it joined after the barrier),
        LeaseLostError, and Spark's own errors.
        """
        place = _Here(self._spark)
        stand_ins: dict[str, str] = {}
        rewritten = self._answer.rewritten(
            query,
            "spark",
            pins_of(self._answer.resolution),
            place=place,
            views=lambda parts: view_in(self._spark, quoted(*parts), place.catalogs),
            metadata=lambda name: stand_ins.setdefault(name, f"meta_{uuid4().hex}"),
        )
        if rewritten.outside:
            log.info("read as they are now, since they are not of the topology: %s", ", ".join(rewritten.outside))
        if stand_ins:
            return self._with_metadata(rewritten.sql, args, stand_ins)
        return self._spark.sql(rewritten.sql, args)

    def table(self, name: str) -> DataFrame:
        """``name`` as Spark would look it up: ``lake.shop.price``, or less of it where the session stands."""
        parts = exp.to_table(name, dialect="spark").parts
        return self.sql(f"SELECT * FROM {quoted(*(part.name for part in parts))}")

    def _with_metadata(
        self, text: str, args: dict[str, Any] | list[Any] | None, stand_ins: Mapping[str, str]
    ) -> DataFrame:
        """Spark puts DataFrames in for names in braces, and leaves no view of them behind."""
        text = text.replace("{", "{{").replace("}", "}}")
        frames = {}
        for name, stands in stand_ins.items():
            text = text.replace(quoted(stands), "{" + stands + "}")
            frames[stands] = self._spark.createDataFrame(self._answer.metadata(name))
        return self._spark.sql(text, args, **frames)


class _Here(Place):
    """Where a session stands. It is asked for what the names in a query need and no more, since each answer is a round
    trip: names that begin with the topology's catalog need none.
    """

    _spark: SparkSession

    def __init__(self, spark: SparkSession) -> None:
        object.__setattr__(self, "_spark", spark)

    @cached_property
    def catalog(self) -> str:
        return str(self._spark.catalog.currentCatalog())

    @cached_property
    def namespace(self) -> str:
        return str(self._spark.catalog.currentDatabase())

    @cached_property
    def temporary(self) -> frozenset[str]:
        # Any namespace of Spark's own catalog lists the temporary views along; this one has no others.
        views = self._spark.sql("SHOW VIEWS IN spark_catalog.global_temp").collect()
        return frozenset(row["viewName"] for row in views if not row["namespace"])

    @cached_property
    def case_sensitive(self) -> bool:
        return str(self._spark.conf.get("spark.sql.caseSensitive")).lower() == "true"

    @cached_property
    def catalogs(self) -> frozenset[str]:
        return _catalogs(self._spark.conf.getAll)


def _catalogs(conf: Mapping[str, str]) -> frozenset[str]:
    """Those of the conf too that nobody has used yet, which Spark does not list."""
    names = (key.removeprefix(_CATALOG) for key in conf if key.startswith(_CATALOG))
    return frozenset({_OWN, *(name for name in names if "." not in name)})
