"""Spark over one consistent answer: unchanged SQL, and tables as DataFrames."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from airflow_barrier.protocol.errors import SqlSyntaxError, UnpinnableError
from airflow_barrier.protocol.metadata import metadata_table
from airflow_barrier.reading._names import Parts, Place
from airflow_barrier.reading.rewriting import pins_of
from airflow_barrier.reading.spark_views import names_in, read_now, view_in
from airflow_barrier.spark.identifiers import parts_of, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_barrier.reading.pinned import Pinned

_CATALOG = "spark.sql.catalog."
#: What Spark calls its own.
_OWN = "spark_catalog"
#: The namespace of temporary views that all sessions of an application see.
_GLOBAL = "global_temp"


class ConsistentSpark:
    """A Spark session (classic or Connect) that reads at the barrier of a consistent session.

    :meth:`sql` takes SQL as it is run elsewhere, and :meth:`table` a table for the DataFrame API. Views are read at the
    barrier too. Temporary views are what they were made of: one that reads a table of the topology is refused, unless
    it is made of what :meth:`sql` and :meth:`table` gave at this barrier. Tables outside the topology are read as they
    are now, and a warning says so once (:attr:`Answer.outside <airflow_barrier.reading.pinned.Pinned.outside>` lists
    them). The metadata tables `__META_...` can be read along: as they are when the query is handed in, since they tell
    of all barriers. DataFrames are lazy: use them before the session ends, which alone keeps their snapshots from being
    deleted. They are Spark's own, and what is written by one (``writeTo``, ``write``) is written.

    >>> with consistent_session(deployment, "shopping") as session:  # doctest: +SKIP
    ...     session.spark(spark).sql("SELECT * FROM lake.shop.amount JOIN lake.shop.price USING (itemId)").show()
    """

    def __init__(self, answer: Pinned, spark: SparkSession, catalog: str | None = None) -> None:
        self._answer = answer
        self._spark = spark
        self._catalog = catalog

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
            catalog=self._catalog,
            place=place,
            views=lambda parts: view_in(self._spark, quoted(*parts), place.catalogs),
            metadata=lambda name: stand_ins.setdefault(name, f"meta_{uuid4().hex}"),
        )
        for view in rewritten.temporary:
            self._require_pinned(view)
        self._answer.tell(rewritten)
        if stand_ins:
            return self._with_metadata(rewritten.sql, args, stand_ins)
        return self._spark.sql(rewritten.sql, args)

    def table(self, name: str) -> DataFrame:
        """``name`` as Spark would look it up: ``lake.shop.price``, or less of it where the session stands."""
        parts = parts_of(name)
        if not parts:
            raise SqlSyntaxError(
                f"table: expected a name such as catalog.namespace.table, found {name!r}; put backticks around what is "
                "not one word"
            )
        return self.sql(f"SELECT * FROM {quoted(*parts)}")

    def _require_pinned(self, view: str) -> None:
        """Raises UnpinnableError for a temporary view that does not read as of the answer."""
        snapshots = {**dict.fromkeys(self._answer.unresolved), **self._answer.snapshots}
        if found := read_now(self._spark, view, snapshots, self._catalog):
            raise UnpinnableError(  # safety: temporary-views-are-pinned
                f"SQL: expected temporary views over tables outside the topology, or made of what this session read, "
                f"found {view}, which reads {', '.join(found)} at another snapshot; make it of session.spark(...).sql "
                "or .table, or name the tables in the query"
            )

    def _with_metadata(
        self, text: str, args: dict[str, Any] | list[Any] | None, stand_ins: Mapping[str, str]
    ) -> DataFrame:
        """Spark puts DataFrames in for names in braces, and leaves no view of them behind."""
        text = text.replace("{", "{{").replace("}", "}}")
        frames = {}
        for name, stands in stand_ins.items():
            text = text.replace(quoted(stands), "{" + stands + "}")
            # Spark Connect asks for the types of a table without rows
            types = ", ".join(f"{column.name} {column.type}" for column in metadata_table(name).columns)
            frames[stands] = self._spark.createDataFrame(self._answer.metadata(name), types)
        return self._spark.sql(text, args, **frames)


class _Here(Place):
    """The place of a session. It is asked for what the names in a query need and no more, since each answer is a round
    trip: names that begin with the topology's catalog need none.
    """

    _spark: SparkSession

    def __init__(self, spark: SparkSession) -> None:
        object.__setattr__(self, "_spark", spark)

    @cached_property
    def catalog(self) -> str:
        return str(self._spark.catalog.currentCatalog())

    @cached_property
    def namespace(self) -> Parts:
        said = str(self._spark.catalog.currentDatabase())
        return names_in(said, "SQL") if said else ()

    @cached_property
    def temporary(self) -> frozenset[str]:
        # Any namespace of Spark's own catalog lists the temporary views along; this one has no others.
        views = self._spark.sql(f"SHOW VIEWS IN {_OWN}.{_GLOBAL}").collect()
        return frozenset(row["viewName"] for row in views if not row["namespace"])

    def is_temporary(self, parts: Parts) -> bool:
        return super().is_temporary(parts) or (len(parts) == 2 and parts[0].casefold() == _GLOBAL)

    @cached_property
    def case_sensitive(self) -> bool:
        return str(self._spark.conf.get("spark.sql.caseSensitive")).lower() == "true"

    @cached_property
    def catalogs(self) -> frozenset[str]:
        return _catalogs(self._spark.conf.getAll)


def _catalogs(conf: Mapping[str, str]) -> frozenset[str]:
    """Return those of the conf too that nobody has used yet, which Spark does not list."""
    names = (key.removeprefix(_CATALOG) for key in conf if key.startswith(_CATALOG))
    return frozenset({_OWN, *(name for name in names if "." not in name)})
