"""What can be read by one consistent answer, and by which engines."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from airflow_barrier.reading.pinned import Pinned

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyiceberg.table import StaticTable
    from pyspark.sql import SparkSession

    from airflow_barrier.reading.rewriting import Place, Rewritten
    from airflow_barrier.reading.spark_session import ConsistentSpark


class Answer(Pinned):
    """A consistent answer that somebody holds: a session, or what was handed out."""

    def duckdb(self) -> AbstractContextManager[DuckDBPyConnection]:
        """A DuckDB connection in which each table is a view of its name.

        See :func:`~airflow_barrier.reading.duckdb_views.duckdb_connection`.
        """
        from airflow_barrier.reading.duckdb_views import duckdb_connection

        return duckdb_connection(self._deployment.tables, self.resolution, self.catalog, self._deployment.meta)

    def spark(self, spark: SparkSession, catalog: str | None = None) -> ConsistentSpark:
        """Unchanged SQL, and DataFrames, of a Spark session; ``catalog`` as for :meth:`sql`."""
        from airflow_barrier.reading.spark_session import ConsistentSpark

        return ConsistentSpark(self, spark, catalog)

    def table(self, name: str) -> StaticTable:
        """pyiceberg's table at the answer's snapshot: ``answer.table("shop.price").scan().to_arrow()``.

        Raises UnknownTableError, for a table that joined after the barrier naming its first one.
        """
        from airflow_barrier.reading.one_table import iceberg_table

        if name not in self.resolution.tables:
            self.require_table(name)
        return iceberg_table(self._deployment.tables, self.resolution, name)

    def sql(self, query: str, dialect: str, place: Place | None = None, *, catalog: str | None = None) -> Rewritten:
        """``query`` with its tables pinned, for an engine that speaks ``dialect`` and stands at ``place``.

        ``catalog``: what that engine calls the catalog that the tables are in. None: what Spark calls it (the
        connection's ``spark_catalog``), and then a table of the same name in another catalog is refused, since it may
        be the very same. What is read as it is now is logged as a warning. Of an engine's views only the names are
        known here: they read what they were made of.

        It is held as long as the answer is: what outlives a session is handed out by
        :func:`~airflow_barrier.reading.handing_out.hand_out`. The metadata documents that text for DuckDB names are not
        held: where ``write.metadata.delete-after-commit.enabled`` is set, they are gone after some commits.

        Raises what :meth:`rewritten` does.
        """
        from airflow_barrier.reading.rewriting import pins_of

        tables = self._deployment.tables
        metadata = tables.metadata_locations(list(self.resolution.tables)) if dialect == "duckdb" else None
        found = self.rewritten(query, dialect, pins_of(self.resolution, metadata), catalog=catalog, place=place)
        self.tell(found)
        return found
