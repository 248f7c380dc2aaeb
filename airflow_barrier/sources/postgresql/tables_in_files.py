"""What sources have in common whose changes of a database's tables lie in files beside the warehouse."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError
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
    no_recut,
)
from airflow_barrier.systems.postgresql import CONN_TYPE, dataset_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Self

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,60}")


@dataclass(frozen=True)
class TablesInFiles(ABC):
    """Tables of one database, whose changes a cut takes into files. Raises ConfigurationError for settings that
    contradict each other.
    """

    kind: ClassVar[str]
    location: ClassVar[None] = None
    secrets: ClassVar[Mapping[str, str]] = {}

    name: str
    conn_id: str
    tables: Sequence[str]
    as_text: Sequence[str] = ()
    # not the author's to say, and no part of the declaration: see `within`, and `of_table` for a driver
    _credentials: Credentials | None = field(default=None, init=False, repr=False, compare=False)
    _table: str | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        where = f"{type(self).__name__}({self.name!r})"
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

    # --- the declaration --------------------------------------------------------------------------

    def declare(self) -> ExternalSource:
        return declaration_of(self)

    @classmethod
    def of(cls, declared: ExternalSource) -> Self:
        return declared_source(cls, declared)

    def of_table(self, table: str | None) -> Self:
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

    def within(self, limits: Limits, *credentials: Credentials) -> Self:
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

    @abstractmethod
    def look(self, catalog: SourceCatalog) -> None: ...

    @abstractmethod
    def cut(self, request: CutRequest) -> Cut: ...

    @abstractmethod
    def lag(self, cut: Cut | None, now: datetime) -> Lag | None: ...

    def check(self, cut: Cut) -> None:  # noqa: B027 - no method to be overridden
        """Nothing: what the epoch reads lies beside the warehouse, as it was taken out."""

    def repin(self, cut: Cut) -> Cut:
        return cut

    def recut(self, cuts: Sequence[Cut], used: Callable[[Sequence[str]], set[str]]) -> list[Cut]:
        raise no_recut(self._what, "a database", "correct it there")  # safety: positions-are-not-cut-anew

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

    def release(self, cut: Cut, catalog: SourceCatalog) -> None:  # noqa: B027 - no method to be overridden
        """Nothing: see :meth:`let_go`."""

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

    # --- what all need ---------------------------------------------------------------------------

    @property
    def _what(self) -> str:
        return f"source {self.name}"

    @property
    def _entered(self) -> Credentials:
        if self._credentials is None:
            raise ConfigurationError(f"{self._what}: expected connection {self.conn_id}, found none; define it")
        return self._credentials
