"""Tables of a PostgreSQL database, whose changes come by logical decoding: each of its transactions in one epoch.

    shop_db = PostgreSQL("shop_db", conn_id="shop", tables=["public.orders", "public.items"])
    barrier.job(SparkEpochOperator(task_id="orders", ...), inlets=[shop_db], outlets=["shop.orders"])
    barrier.job(SparkEpochOperator(task_id="items", ...), inlets=[shop_db], outlets=["shop.items"])

and in a job ``epoch.apply(epoch.source("shop_db", "public.orders"), "shop.orders", key="id")``.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import ConfigurationError, RevisionRefusedError, SourceDataError
from airflow_barrier.protocol.names import is_rehearsal
from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.topology import ExternalSource
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.port import (
    CutRequest,
    Delta,
    Lag,
    SourceCatalog,
    declaration_of,
    declared_source,
)
from airflow_barrier.systems.postgresql import CONN_TYPE, dataset_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_barrier.sources.postgresql.cuts import Reading

log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,60}")
#: Bytes of a slot's name; it has small letters, digits and `_`.
_LONGEST_SLOT = 63
_SLOT = re.compile(rf"[a-z0-9_]{{1,{_LONGEST_SLOT}}}")


@dataclass(frozen=True)
class PostgreSQL:
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
    location: ClassVar[None] = None
    secrets: ClassVar[Mapping[str, str]] = {}

    name: str
    conn_id: str
    tables: Sequence[str]
    slot: str | None = None
    publication: str | None = None
    as_text: Sequence[str] = ()
    max_ahead_bytes: int = 50 * 1024**3
    # not the author's to say, and no part of the declaration: see `within`, and `of_table` for a driver
    _credentials: Credentials | None = field(default=None, init=False, repr=False, compare=False)
    _table: str | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        where = f"PostgreSQL({self.name!r})"
        if _NAME.fullmatch(self.name) is None:
            raise ConfigurationError(
                f"{where}: expected a name of 1 to 60 letters, digits, '_', '.' and '-', found {self.name!r}"
            )
        for setting in ("tables", "as_text"):
            if isinstance(getattr(self, setting), str):
                raise ConfigurationError(f"{where}: {setting}: expected a list, found a text; put it in brackets")
            object.__setattr__(self, setting, tuple(getattr(self, setting)))
        odd = [table for table in self.tables if table.count(".") != 1 or not all(table.split("."))]
        if odd or not self.tables or len(set(self.tables)) < len(self.tables):
            raise ConfigurationError(
                f"{where}: tables: expected schema.table, each once, found {', '.join(odd or self.tables) or 'none'}"
            )
        if strange := [name for name in self.as_text if name.rpartition(".")[0] not in self.tables]:
            raise ConfigurationError(
                f"{where}: as_text: expected schema.table.column of its tables, found {', '.join(strange)}"
            )
        if self.slot is not None and _SLOT.fullmatch(self.slot) is None:
            raise ConfigurationError(
                f"{where}: slot: expected 1 to {_LONGEST_SLOT} small letters, digits and '_', found {self.slot!r}"
            )

    # --- the declaration --------------------------------------------------------------------------

    def declare(self) -> ExternalSource:
        return declaration_of(self)

    @classmethod
    def of(cls, declared: ExternalSource) -> PostgreSQL:
        return declared_source(cls, declared)

    def of_table(self, table: str | None) -> PostgreSQL:
        """See :class:`~airflow_barrier.sources.port.Tables`."""
        if table is None and len(self.tables) == 1:
            table = self.tables[0]
        if table not in self.tables:
            raise ConfigurationError(
                f"{self._what}: expected one of its tables ({', '.join(self.tables)}), found {table or 'none named'}; "
                f"name it: epoch.source('{self.name}', '{self.tables[0]}'), {{source:{self.name}.{self.tables[0]}}}"
            )
        one = replace(self)
        object.__setattr__(one, "_table", table)
        return one

    @property
    def connections(self) -> Sequence[tuple[str, str]]:
        return [(self.conn_id, CONN_TYPE)]

    def within(self, limits: Limits, *credentials: Credentials) -> PostgreSQL:
        entered = replace(self)
        for each in credentials:
            object.__setattr__(entered, "_credentials", each)
        return entered

    def dataset(self, catalog: str) -> tuple[str, str]:
        """The database: its tables are cut as one."""
        namespace, name = dataset_of(self._credentials or Credentials(self.conn_id), "")
        return namespace, name.rstrip(".")

    def for_driver(self) -> ExternalSource:
        return self.declare()

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

    def check(self, cut: Cut) -> None:
        """Nothing: what the epoch reads lies beside the warehouse, as it was taken out."""

    def lag(self, cut: Cut | None, now: datetime) -> Lag | None:
        """Counted in bytes of the log. Raises SourceUnavailableError and SourceDataError."""
        from airflow_barrier.sources.postgresql.cuts import lag

        return None if cut is None else lag(self._what, self._entered, cut)

    def repin(self, cut: Cut) -> Cut:
        return cut

    def recut(self, cuts: Sequence[Cut], used: Callable[[Sequence[str]], set[str]]) -> list[Cut]:
        raise RevisionRefusedError(  # safety: positions-are-not-cut-anew
            f"{self._what}: expected a source that is cut into items, such as files, found a database, where the next "
            "cut begins at the position that this one ends at; say what replaces the epoch (--sql, --file), or correct "
            "the database, and it is in the epoch that is cut next"
        )

    def check_held(self, cut: Cut, catalog: SourceCatalog) -> None:
        from airflow_barrier.sources.postgresql.segments import files_of, missing

        if gone := missing(catalog, files_of(cut)):
            raise SourceDataError(  # safety: taken-changes-are-kept
                f"{self._what}: expected the changes of its epoch as they were taken out of the database, found that "
                f"{len(gone)} files are gone, such as {gone[0]}: its barrier expired, or somebody deleted them. "
                "Replace the epoch by a revision (--sql, --file)"
            )

    def whole(self, cuts: Sequence[Cut]) -> Cut:
        """Join cuts: the files of all of them, from where the first begins."""
        return Cut(
            cuts[-1].source,
            cuts[0].start,
            {**cuts[-1].end, "files": [file for cut in cuts for file in cut.end["files"]]},
        )

    def release(self, cut: Cut, catalog: SourceCatalog) -> None:
        """Nothing: see :meth:`let_go`."""

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

    def size(self, cut: Cut) -> int:
        return sum(file["bytes"] for file in cut.end["files"])

    # --- in the Spark driver ----------------------------------------------------------------------

    def load(
        self,
        spark: SparkSession,
        cut: Cut,
        after: datetime | None,
        until: datetime,
        catalog: str,
        delta: Delta,
        secrets: Mapping[str, str],
    ) -> DataFrame:
        """The epoch's changes of one of the tables: see :meth:`of_table`."""
        from airflow_barrier.sources.postgresql.records import changes_of

        if self._table is None:
            return self.of_table(None).load(spark, cut, after, until, catalog, delta, secrets)
        return changes_of(spark, self._what, self._table, cut)

    # --- what both need ---------------------------------------------------------------------------

    @property
    def _what(self) -> str:
        return f"source {self.name}"

    @property
    def _entered(self) -> Credentials:
        if self._credentials is None:
            raise ConfigurationError(f"{self._what}: expected connection {self.conn_id}, found none; define it")
        return self._credentials

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
