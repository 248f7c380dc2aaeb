"""Tables of a PostgreSQL database, whose changes come by logical decoding: each of its transactions in one epoch.

    shop_db = PostgreSQL("shop_db", conn_id="shop", tables=["public.orders", "public.items"])
    barrier.job(SparkEpochOperator(task_id="orders", ...), inlets=[shop_db], outlets=["shop.orders"])
    barrier.job(SparkEpochOperator(task_id="items", ...), inlets=[shop_db], outlets=["shop.items"])

and in a job ``epoch.apply(epoch.source("shop_db", "public.orders"), "shop.orders", key="id")``.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.names import is_rehearsal
from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources.port import CutRequest, Lag, SourceCatalog
from airflow_barrier.sources.postgresql.tables_in_files import TablesInFiles

if TYPE_CHECKING:
    from airflow_barrier.sources.postgresql.cuts import Reading

#: Bytes of a slot's name; it has small letters, digits and `_`.
_LONGEST_SLOT = 63
_SLOT = re.compile(rf"[a-z0-9_]{{1,{_LONGEST_SLOT}}}")


@dataclass(frozen=True)
class PostgreSQL(TablesInFiles):
    """Tables of one database, cut at one position of its log, so that each transaction is in one epoch, in all tables.

    The first epoch has the tables' rows as insertions, later ones what was committed since. Changes are taken out of
    the database once, when a barrier opens, into Parquet files beside the warehouse: attempts, other jobs and revisions
    read these, and the database need not keep its log for them.

    :param name: unique in the topology, of letters, digits, ``_``, ``.`` and ``-``.
    :param conn_id: an Airflow connection of type `postgres`. Its role may replicate and read the tables.
    :param tables: ``schema.table`` each, as they are spelled in the database.
    :param slot: of logical replication, with plugin `pgoutput`. Default: one that is made with the first barrier, and
        called after topology, source and warehouse. Nobody else may read it.
    :param publication: with all of the tables. Default: one that is made, and called like the slot.
    :param as_text: columns, as ``schema.table.column``, that come as text whatever their type: of those that hold what
        Spark's type does not, such as infinite dates.
    :param max_ahead_bytes: of changes that are taken out while no barrier may open, so that the database need not keep
        its log; beyond them it keeps it, and the log of the task that would open says so.

    A job reads ``epoch.source(name, table)``: the table's columns, then

    - ``_change_type``: ``insert``, ``delete`` (an update is both) or ``truncate``: all rows went before what follows
    - ``_weight``: +1, -1 and 0 for these
    - ``_seq``: the change's number among all of the source, in the order of their transactions' commits
    - ``_xid``, ``_committed_at``: of the transaction; NULL and the time of the copy for copied rows
    - ``_unsent``: names of the columns whose values the database did not send, which are NULL here: in a deletion all
      but the key of the replica identity, in an insertion large values that an update left as they were (and the key,
      if the update changed it: then they are those of another row). With ``REPLICA IDENTITY FULL`` there are none.

    Raises :class:`ConfigurationError` for settings that contradict each other.

    >>> PostgreSQL("shop_db", conn_id="shop", tables=["public.orders"]).tables
    ('public.orders',)
    """

    kind: ClassVar[str] = "postgresql"

    slot: str | None = None
    publication: str | None = None
    max_ahead_bytes: int = 50 * 1024**3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slot is not None and _SLOT.fullmatch(self.slot) is None:
            raise ConfigurationError(
                f"PostgreSQL({self.name!r}): slot: expected 1 to {_LONGEST_SLOT} small letters, digits and '_', found "
                f"{self.slot!r}"
            )

    # --- on the worker ----------------------------------------------------------------------------

    def look(self, catalog: SourceCatalog) -> None:
        """Raises SourceDataError naming all that keeps the database from giving its changes, each with the statement
        that mends it, SourceUnavailableError and ConfigurationError.
        """
        from airflow_barrier.sources.postgresql.checks import check
        from airflow_barrier.sources.postgresql.database import Database

        with Database(self._what, self._entered) as database:
            check(database, self.tables, self.slot, self.publication)

    def cut(self, request: CutRequest) -> Cut:
        """Take out what was committed since the predecessor's cut, and cut behind it.

        Raises SourceDataError where that is not all there any more, SourceUnavailableError and ConfigurationError.
        """
        from airflow_barrier.sources.postgresql.cuts import cut

        if request.catalog is None:
            raise ConfigurationError(f"{self._what}: expected a warehouse to put changes beside, found none")
        return cut(self._reading(request.catalog, request.topology), request)

    def lag(self, cut: Cut | None, now: datetime) -> Lag | None:
        """Counted in bytes of the log. Raises SourceUnavailableError and SourceDataError."""
        from airflow_barrier.sources.postgresql.cuts import lag

        return None if cut is None else lag(self._what, self._entered, cut)

    def keep_up(self, newest: Cut, catalog: SourceCatalog) -> None:
        """See :class:`~airflow_barrier.sources.port.Kept`."""
        from airflow_barrier.sources.postgresql.cuts import keep_up

        keep_up(self._reading(catalog, ""), newest)

    def let_go(self, oldest: Cut, catalog: SourceCatalog) -> None:
        """See :class:`~airflow_barrier.sources.port.Kept`."""
        from airflow_barrier.sources.postgresql.cuts import let_go

        let_go(oldest, catalog)

    def leave(self, topology: str, catalog: SourceCatalog) -> None:
        """Drop the slot, and the publication, unless somebody else made them for the source."""
        from airflow_barrier.sources.postgresql.cuts import leave

        reading = self._reading(catalog, topology)
        leave(reading, own_slot=self.slot is None, own_publication=self.publication is None)

    def _reading(self, catalog: SourceCatalog, topology: str) -> Reading:
        from airflow_barrier.sources.postgresql.cuts import Reading

        folder = catalog.location("_barrier", topology, "sources", self.name)
        slot = self.slot or _slot_name(topology, self.name, folder)
        publication = self.publication or slot
        return Reading(
            self._what,
            self._entered,
            catalog,
            folder,
            slot,
            publication,
            tuple(self.tables),
            frozenset(self.as_text),
            self.max_ahead_bytes,
            consumes=not is_rehearsal(topology),
        )


def _slot_name(topology: str, source: str, folder: str) -> str:
    """Tell apart what two warehouses take out of one database, such as a copy of production's."""
    plain = re.sub("[^a-z0-9_]", "_", f"barrier_{topology}_{source}".lower())
    digest = hashlib.sha256(folder.encode()).hexdigest()[:8]
    return f"{plain[: _LONGEST_SLOT - len(digest) - 1]}_{digest}"
