"""What differs between the catalogs that Iceberg tables are listed in: how documents are read, and edits committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.tables._documents import Documents
from airflow_barrier.tables._metadata import Changes, Document

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from sqlalchemy import Connection

    from airflow_barrier.tables.spark_catalog import SparkCatalog

#: What an edit changes in a document, which is given with its location. It is asked again whenever another commit was
#: faster, and after an answer that was lost: what is done already it does not change again.
Edit = Callable[[Document, str], Changes]


@dataclass(frozen=True)
class Draft:
    """A document written beside the table's current one, at ``location``; equal to ``based_on``: nothing to change.

    ``files``: what was written for it. ``obsolete``: what nobody needs once the pointer has moved.
    """

    based_on: str
    location: str
    files: tuple[str, ...] = ()
    obsolete: tuple[str, ...] = ()


Drafts = dict[str, Draft]


class Joining(Protocol):
    """The capability to publish within a database transaction that somebody else commits."""

    def can_be_joined_by(self, connection: Connection) -> bool:
        """See :meth:`airflow_barrier.tables.port.TableFormat.can_be_moved_by`."""
        ...

    def draft(self, edits: Mapping[str, Edit]) -> Drafts:
        """Write the documents for :meth:`join` before its transaction begins, so that it holds its locks briefly."""
        ...

    def join(self, connection: Connection, edits: Mapping[str, Edit], drafts: Drafts) -> dict[str, str]:
        """Move the pointers within a transaction that somebody else commits or rolls back."""
        ...

    def discard(self, drafts: Drafts) -> None:
        """Delete what was written for drafts that certainly no table points to."""
        ...


class TableCatalog(Protocol):
    """A catalog of Iceberg tables.

    Raises MissingTableError, CatalogUnavailableError, CatalogRefusedError, ConfigurationError.
    """

    #: Whether :meth:`commit` makes all edits visible in one step. If not, it goes table by table, in order of names.
    atomic: bool

    @property
    def table_properties(self) -> Mapping[str, str]:
        """The properties that engines go by which commit to a table, for tables where nobody has set them."""
        ...

    @property
    def database_url(self) -> str | None:
        """The database that :attr:`joining` joins transactions of, without password and options; or None."""
        ...

    @property
    def joining(self) -> Joining | None: ...

    @property
    def catalog(self) -> Catalog:
        """pyiceberg's catalog over the same tables: to create, load and read them."""
        ...

    def read(self, tables: Iterable[str]) -> dict[str, Document]:
        """The current document of each table, each read once."""
        ...

    def locations(self, tables: Iterable[str]) -> dict[str, str]:
        """Return where the current document of each table lies."""
        ...

    def current(self, table: str) -> tuple[str, Document]:
        """Return where the table's current document lies, and the document."""
        ...

    def create(self, table: str, schema: Schema, spec: PartitionSpec, properties: Mapping[str, str]) -> bool:
        """See :meth:`airflow_barrier.tables.port.TableFormat.create`."""
        ...

    def commit(self, edits: Mapping[str, Edit]) -> dict[str, str]:
        """Make all edits visible. Returns table -> location of the document that now counts.

        What an edit raises before anything is visible is raised with nothing changed.
        """
        ...

    def check(self) -> str:
        """One sentence about what is there."""
        ...

    def prove(self) -> None:
        """Raise ConfigurationError unless the catalog does what the protocol needs of it, and what was declared."""
        ...

    def reattach(self, tables: Mapping[str, tuple[str, int | None]]) -> list[str]:
        """See :meth:`airflow_barrier.tables.port.TableFormat.reattach`."""
        ...

    def close(self) -> None: ...


class CatalogAdapter(Protocol):
    """The module of one kind of catalog; :data:`airflow_barrier.tables.CATALOGS` names it."""

    def connect(
        self,
        uri: str,
        warehouse: str,
        catalog_name: str,
        properties: Mapping[str, str],
        documents: Documents,
        *,
        atomic: bool,
    ) -> TableCatalog:
        """See :meth:`airflow_barrier.tables.iceberg.IcebergTables.connect`. ``documents``: the warehouse's files.

        Touches nothing outside this process.
        """
        ...

    def spark_catalog(self, uri: str, warehouse: str, properties: Mapping[str, str]) -> SparkCatalog:
        """Return the settings by which Spark enters the same catalog. ``uri`` is without password. Raises
        ConfigurationError if it cannot.
        """
        ...


def split(table: str) -> tuple[str, str]:
    """Namespace and name of ``namespace.table``."""
    namespace, _, name = table.rpartition(".")
    if not namespace or not name:
        raise ConfigurationError(f"table {table!r}: expected namespace.table, without the catalog's name")
    return namespace, name
