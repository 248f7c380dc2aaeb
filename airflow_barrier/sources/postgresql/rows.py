"""Tables of a PostgreSQL database, read by a column that tells when a row was changed last.

    shop_db = PostgreSQLRows("shop_db", conn_id="shop", tables=["public.orders", "public.items"], by="updated_at")
    barrier.job(SparkEpochOperator(task_id="orders", ...), inlets=[shop_db], outlets=["shop.orders"])

and in a job ``epoch.apply(epoch.source("shop_db", "public.orders"), "shop.orders", key="id")``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources.port import CutRequest, SourceCatalog
from airflow_barrier.sources.postgresql.tables_in_files import TablesInFiles


@dataclass(frozen=True)
class PostgreSQLRows(TablesInFiles):
    """Tables of one database whose role may only read: no slot, no publication. Each row that has changed since the
    barrier before comes as it is now, by the time in a column of it.

    An epoch has the rows whose time is after the mark of the epoch before, up to its own mark: the barrier's timestamp,
    or ``margin`` before the present if that is earlier. The first epoch has all rows up to its mark. All tables are
    read in one snapshot when the barrier opens, into Parquet files beside the warehouse, which attempts, other jobs and
    revisions read.

    :param name: unique in the topology, of letters, digits, ``_``, ``.`` and ``-``.
    :param conn_id: an Airflow connection of type `postgres`. Its role may read the tables.
    :param tables: ``schema.table`` each, as they are spelled in the database.
    :param by: the column, of type `timestamptz` or `timestamp` (in UTC), that each insertion and update of a row sets
        to the present; one for all tables, or one of each: table -> column. It is never NULL, and has an index.
    :param margin: longer than any transaction that writes is open, and than the clocks that set ``by`` differ from the
        database's. Default: 1 minute.
    :param as_text: columns, as ``schema.table.column``, that come as text whatever their type.

    What it does *not* see; :class:`~airflow_barrier.sources.postgresql.PostgreSQL` sees all of it:

    - deletions: deleted rows stay in the tables that the source is applied to
    - changes that do not move ``by``, or move it back
    - rows of a transaction that was open for longer than ``margin``
    - the versions of a row between two barriers
    - transactions as a whole: rows of one transaction are in one epoch only if their times are on one side of the mark.
      A row that was changed once more, after the mark, comes with the next epoch, even if it has come in none before

    ``airflow-barrier source resnapshot`` has the next epoch take all rows, and the rows go that are in no table any
    more; those after its mark come once more with the epoch that follows.

    A job reads ``epoch.source(name, table)``: the table's columns, then ``_change_type`` (``insert``, also for a row
    that is there already; ``truncate`` after a resnapshot), ``_weight`` (+1; 0), ``_seq``, ``_xid`` (NULL),
    ``_committed_at`` (when it was read) and ``_unsent`` (empty).

    Raises :class:`ConfigurationError` for settings that contradict each other.

    >>> PostgreSQLRows("shop_db", conn_id="shop", tables=["public.orders"], by="updated_at").margin
    datetime.timedelta(seconds=60)
    """

    kind: ClassVar[str] = "postgresql_rows"

    by: str | Mapping[str, str] = field(kw_only=True)
    margin: timedelta = timedelta(minutes=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"PostgreSQLRows({self.name!r})"
        if not isinstance(self.by, str) and self.by.keys() != {*self.tables}:
            raise ConfigurationError(
                f"{where}: by: expected a column of each table ({', '.join(self.tables)}), found those of "
                f"{', '.join(self.by) or 'none'}"
            )
        margin: object = self.margin
        if not isinstance(margin, timedelta) or margin < timedelta(0):
            raise ConfigurationError(
                f"{where}: margin: expected a timedelta of 0 or more, found {margin!r}; pass timedelta(minutes=1) "
                "for instance"
            )

    # --- on the worker ----------------------------------------------------------------------------

    def look(self, catalog: SourceCatalog) -> None:
        """Raises SourceDataError naming all that keeps rows from being read, each with the statement that mends it,
        SourceUnavailableError and ConfigurationError. The log warns of a column without an index.
        """
        from airflow_barrier.sources.postgresql.checks import check_times
        from airflow_barrier.sources.postgresql.database import Database

        with Database(self._what, self._entered) as database:
            check_times(database, self._columns)

    def cut(self, request: CutRequest) -> Cut:
        """Read the rows of the epoch, and cut behind them. Raises as :meth:`look` does."""
        from airflow_barrier.sources.postgresql.row_cuts import RowReading, cut

        if request.catalog is None:
            raise ConfigurationError(f"{self._what}: expected a warehouse to put rows beside, found none")
        folder = request.catalog.location("_barrier", request.topology, "sources", self.name)
        reading = RowReading(
            self._what, self._entered, request.catalog, folder, self._columns, frozenset(self.as_text), self.margin
        )
        return cut(reading, request)

    def lag(self, cut: Cut | None, now: datetime) -> None:
        """None: how many rows came since the mark, only reading them would tell."""

    def keep_up(self, newest: Cut, catalog: SourceCatalog) -> None:
        """Nothing: rows stay in their tables until a barrier opens."""

    def let_go(self, oldest: Cut, catalog: SourceCatalog) -> None:
        """See :class:`~airflow_barrier.sources.port.Kept`."""
        from airflow_barrier.sources.postgresql.row_cuts import let_go

        let_go(oldest, catalog)

    def leave(self, topology: str, catalog: SourceCatalog) -> None:
        """Nothing: the database holds nothing for it."""

    @property
    def _columns(self) -> dict[str, str]:
        """Table -> column."""
        return {table: self.by if isinstance(self.by, str) else self.by[table] for table in self.tables}
