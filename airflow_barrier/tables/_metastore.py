"""Tables in a metastore, which keeps one pointer a table and compares it when it is moved: Hive's, or AWS Glue.

It has no transaction over several tables, so they are published one after the other, by roll forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from airflow_barrier.protocol.errors import BarrierError, CatalogUnavailableError, ConfigurationError
from airflow_barrier.tables._catalog import Draft, Edit, split
from airflow_barrier.tables._creation import create_table
from airflow_barrier.tables._documents import Documents
from airflow_barrier.tables._drafts import OwnDocuments
from airflow_barrier.tables._drafts import Pointers as ReadPointers
from airflow_barrier.tables._metadata import Document, snapshots_of
from airflow_barrier.tables._retries import OvertakenError, roll_forward
from airflow_barrier.tables._scratch import Proof, scratch_tables

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyiceberg.catalog import MetastoreCatalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema


#: The parameters of a table that say where its document lies, and where the one before it.
LOCATION, PREVIOUS = "metadata_location", "previous_metadata_location"


class Pointers(ReadPointers, Protocol):
    """Raises CatalogUnavailableError (a move may have happened), CatalogRefusedError, ConfigurationError."""

    @property
    def title(self) -> str:
        """The metastore and its address, for messages."""
        ...

    @property
    def catalog(self) -> MetastoreCatalog: ...

    def translated(self) -> AbstractContextManager[None]:
        """Raise this package's errors for what pyiceberg and the metastore's client raise."""
        ...

    def move(self, table: str, draft: Draft, before: Document, after: Document) -> None:
        """Let the table point to ``draft.location``, if it points to ``draft.based_on``. Raises OvertakenError.

        ``before`` and ``after`` are the documents there, of which a metastore may repeat something.
        """
        ...

    def prove(self, table: str) -> Mapping[str, str]:
        """Raise ConfigurationError unless one commit is kept from overwriting another, tried on this table.

        Returns the properties by which engines are kept from it, too, for tables where nobody has set them.
        """
        ...

    def close(self) -> None: ...


def pointer_of(title: str, table: str, parameters: Mapping[str, str] | None, kind: str | None) -> str:
    """Return where a row of the metastore points to. ``kind``: the type that it says beside its ``parameters``.

    Raises ConfigurationError for a table that is none of Iceberg's.
    """
    said = (parameters or {}).get("table_type", "")
    location = (parameters or {}).get(LOCATION)
    if said.lower() != "iceberg" or not location:
        raise ConfigurationError(
            f"table {table}: expected a table of Iceberg in {title}, found one of the type "
            f"{said or kind or 'unknown'}; migrate it (CALL system.migrate in Spark), or declare another table"
        )
    return location


def overtaken(title: str, table: str, found: str = "another place") -> OvertakenError:
    return OvertakenError(
        f"{title}: expected {table} to stay as it is for a moment, found that another commit moved it to {found}; try "
        "again"
    )


class MetastoreTables(OwnDocuments):
    """Implements :class:`~airflow_barrier.tables._catalog.TableCatalog`. ``folder``: where a proof is remembered."""

    atomic = False
    database_url = None
    joining = None

    _pointers: Pointers

    def __init__(self, pointers: Pointers, documents: Documents, folder: str) -> None:
        super().__init__(pointers, documents)
        self._proof = Proof(documents, folder, pointers.title, "roll-forward")

    @property
    def catalog(self) -> MetastoreCatalog:
        return self._pointers.catalog

    def close(self) -> None:
        self._pointers.close()

    def check(self) -> str:
        with self._pointers.translated():
            databases = len(self.catalog.list_namespaces())
        return f"Iceberg tables in {self._pointers.title}: {databases} databases, published table by table."

    def prove(self) -> None:
        _ = self.table_properties

    @cached_property
    def table_properties(self) -> Mapping[str, str]:
        if (found := self._proof.recall()) is None:
            with scratch_tables(self.catalog, self._pointers.translated, 1) as (table,):
                found = {"table_properties": dict(self._pointers.prove(table))}
            self._proof.remember(**found)
        properties: dict[str, str] = found["table_properties"]
        return properties

    def create(self, table: str, schema: Schema, spec: PartitionSpec, properties: Mapping[str, str]) -> bool:
        return create_table(self.catalog, self._pointers.translated, table, schema, spec, properties)

    def commit(self, edits: Mapping[str, Edit]) -> dict[str, str]:
        return roll_forward(edits, self._look, self._commit_one)

    def _look(self, tables: Iterable[str]) -> dict[str, tuple[str, Document]]:
        return self._documents.of_each(self._current, self._pointers.read(tables))

    def _commit_one(self, table: str, edit: Edit) -> str:
        draft, before, after = self._draft(table, self._pointers.read([table])[table], edit, trim=True)
        if draft.location == draft.based_on:
            return draft.location
        try:
            self._pointers.move(table, draft, before, after)
        except BarrierError as error:
            lost_race = isinstance(error, OvertakenError)
            if isinstance(error, CatalogUnavailableError) and not lost_race:  # safety: files-of-an-unknown-move
                raise  # nobody knows whether it has moved: the next try finds out from the table
            if lost_race and self._has_counted(table, draft, before, after):  # safety: files-of-a-repeated-move
                raise
            self.discard({table: draft})
            raise
        self._documents.delete(draft.obsolete)
        return draft.location

    def _has_counted(self, table: str, draft: Draft, before: Document, after: Document) -> bool:
        """Return whether the table was moved all the same: a client may have sent a move twice, and it is the second
        that is refused.
        """
        location, now = self._current(table, self._pointers.read([table])[table])
        log = {entry["metadata-file"] for entry in now.get("metadata-log") or ()}
        ours = snapshots_of(after).keys() - snapshots_of(before).keys()
        return draft.location in {location, *log} or not ours.isdisjoint(snapshots_of(now))

    def _attach(self, table: str, location: str | None, to: str) -> None:
        with self._pointers.translated():
            if location is None:
                self.catalog.create_namespace_if_not_exists(split(table)[0])
                self.catalog.register_table(table, to)
                return
        document = self._documents.read(to)
        self._pointers.move(table, Draft(location, to), document, document)
