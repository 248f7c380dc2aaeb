"""Iceberg tables of format version 2 and 3 in an SQL catalog, which is the one of Iceberg's JDBC catalog in Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING

from airflow_barrier.protocol.errors import BarrierError, MissingTableError, StagedTableError, Terminal
from airflow_barrier.protocol.names import Stamp
from airflow_barrier.tables import _checks, _traces
from airflow_barrier.tables._commit import Committer, Drafts, Edit, now_ms
from airflow_barrier.tables._documents import Documents
from airflow_barrier.tables._lost import newest_with
from airflow_barrier.tables._metadata import (
    MAIN,
    Changes,
    Document,
    empty_root,
    is_wap_enabled,
    ref_of,
    refs_of,
    snapshots_of,
    wap_changes,
)
from airflow_barrier.tables._sql_swap import SqlPointers, split
from airflow_barrier.tables.port import Publication, Traces

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table
    from sqlalchemy import Connection


@dataclass
class Staging:
    """Documents of a publish that were written ahead of its transaction. Made by :meth:`IcebergTables.staging`."""

    drafts: Drafts
    used: bool = False


class IcebergTables:
    """Implements :class:`~airflow_barrier.tables.port.TableFormat`. Touches database and storage on first use only.

    >>> with IcebergTables.connect("sqlite:////data/barrier.db", "/data/warehouse") as tables:  # doctest: +SKIP
    ...     tables.mains(["shop.shopping"])
    {'shop.shopping': 4711}
    """

    #: One database transaction moves the pointers of all tables.
    atomic = True

    def __init__(
        self, pointers: SqlPointers, documents: Documents, warehouse: str, properties: Mapping[str, str]
    ) -> None:
        self._pointers = pointers
        self._documents = documents
        self._committer = Committer(pointers, documents)
        self._warehouse = warehouse.rstrip("/")
        self._properties = dict(properties)

    @classmethod
    def connect(
        cls, uri: str, warehouse: str, catalog_name: str = "lake", properties: Mapping[str, str] | None = None
    ) -> IcebergTables:
        """``uri``: SQLAlchemy URL of the catalog's database. ``warehouse``: folder or URI of the warehouse.

        ``catalog_name`` is what the catalog is called in Spark, where it is part of each table's key. ``properties``
        are pyiceberg's for the storage, such as `s3.endpoint`. Raises
        :class:`~airflow_barrier.protocol.errors.ConfigurationError` for a URL that cannot be used.
        """
        properties = {**(properties or {}), "warehouse": warehouse}
        return cls(SqlPointers(uri, catalog_name), Documents(properties), warehouse, properties)

    def __enter__(self) -> IcebergTables:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the database connections."""
        self._pointers.close()
        if "catalog" in self.__dict__:
            self.catalog.close()

    @property
    def database_url(self) -> str:
        """The catalog's database, without password and options."""
        return self._pointers.database_url

    def check(self) -> str:
        """One sentence about what is there. Raises CatalogUnavailableError."""
        return f"Iceberg catalog {self._pointers.catalog_name} in {self.database_url}: {self._pointers.count()} tables."

    # --- reading ----------------------------------------------------------------------------------

    def mains(self, tables: Sequence[str]) -> dict[str, int | None]:
        documents = self._committer.read(tables)
        return {table: ref_of(documents[table], MAIN) for table in tables}

    def current(self, table: str, expected: int | None) -> int | None:
        return _checks.require_main(table, self._read(table), expected)

    def staged(self, table: str, stamp: Stamp, base: int | None) -> int | None:
        return _checks.staged_head(table, self._read(table), stamp, base)

    def check_snapshot(self, table: str, snapshot_id: int, stamp: Stamp, base: int | None) -> None:
        head = self.staged(table, stamp, base)
        if head != snapshot_id:
            raise StagedTableError(  # safety: head-is-what-was-closed
                f"table {table}: expected the head of branch {stamp.branch} to be snapshot {snapshot_id}, as the "
                f"attempt said when it closed, found {'nothing staged' if head is None else f'snapshot {head}'}; "
                "something wrote to the branch after the close: retry the task, which begins a new attempt"
            )

    def wap_enabled(self, tables: Sequence[str]) -> dict[str, bool]:
        documents = self._committer.read(tables)
        return {table: is_wap_enabled(documents[table]) for table in tables}

    def enable_wap(self, tables: Sequence[str]) -> None:
        self._committer.commit({table: lambda document, _: wap_changes(document) for table in tables})

    # --- attempt branches -------------------------------------------------------------------------

    def prepare(self, table: str, stamp: Stamp, base: int | None) -> None:
        def edit(document: Document, location: str) -> Changes:
            if _checks.branch_is_ready(table, document, stamp, base):
                return Changes()
            if base is not None:
                return Changes(branches={stamp.branch: base})
            snapshot_id = new_snapshot_id()
            manifest_list = f"{location.rpartition('/')[0]}/snap-{snapshot_id}-1-{uuid.uuid4()}.avro"
            root = empty_root(document, snapshot_id, manifest_list, stamp.properties(), now_ms())
            return Changes(branches={stamp.branch: snapshot_id}, snapshot=root, writes_list=True)

        self._committer.commit({table: edit})

    # --- publishing -------------------------------------------------------------------------------

    def look(self, publications: Sequence[Publication]) -> None:
        documents = self._committer.read([publication.table for publication in publications])
        for publication in publications:
            _publication_edit(documents[publication.table], "", publication=publication)

    def findings(self, publications: Sequence[Publication]) -> dict[str, BarrierError]:
        found: dict[str, BarrierError] = {}
        for publication in publications:
            try:
                self.look([publication])
            except (Terminal, StagedTableError) as error:
                found[publication.table] = error
        return found

    def publish(
        self,
        publications: Sequence[Publication],
        connection: Connection | None = None,
        staging: Staging | None = None,
    ) -> Mapping[str, str]:
        edits = _edits(publications)
        if connection is None:
            return self._committer.commit(edits)
        if staging is None:
            return self._committer.join(connection, edits, {})
        staging.used = True
        return self._committer.join(connection, edits, staging.drafts)

    @contextmanager
    def staging(self, publications: Sequence[Publication]) -> Iterator[Staging]:
        staging = Staging(self._committer.draft(_edits(publications)) if publications else {})
        try:
            yield staging
        finally:
            if not staging.used:
                self._committer.discard(staging.drafts)

    # --- after a loss -----------------------------------------------------------------------------

    def metadata_locations(self, tables: Sequence[str]) -> dict[str, str]:
        return self._committer.locations(tables)

    def origin(self, table: str) -> Stamp | None:
        return _traces.main_origin(self._read(table))

    def traces(self, table: str, topology: str) -> Traces:
        document = self._read(table)
        return Traces(_traces.published(document, topology), _traces.newest_attempt(document, topology))

    def reattach(self, table: str, metadata: str, snapshot_id: int | None) -> bool:
        try:
            location, document = self._committer.current(table)
        except MissingTableError:
            location, document = "", None
        if document is not None and (snapshot_id is None or snapshot_id in snapshots_of(document)):
            return False
        found = newest_with(self._documents, metadata.rpartition("/")[0], snapshot_id, document)
        if found is None or found[0] == location:
            return False
        if document is None:
            self.catalog.create_namespace_if_not_exists(split(table)[0])
            self.catalog.register_table(split(table), found[0])
        else:
            with self._pointers.transaction() as connection:
                at = self._pointers.lock(connection, [table])[table]
                self._pointers.move(connection, table, at, found[0])
        return True

    # --- tables outside the topology, and files beside the tables ---------------------------------

    @cached_property
    def catalog(self) -> SqlCatalog:
        """pyiceberg's catalog over the same rows: to create, load and read tables. It cannot commit version 3."""
        from pyiceberg.catalog.sql import SqlCatalog

        url = self._pointers.url
        if url.get_backend_name() == "sqlite":
            url = url.update_query_dict({"timeout": "30"})
        return SqlCatalog(
            self._pointers.catalog_name,
            **{**self._properties, "uri": url.render_as_string(hide_password=False), "pool_pre_ping": "true"},
        )

    def load(self, table: str) -> Table:
        """pyiceberg's table, with its newest metadata."""
        self._pointers.read([table])
        return self.catalog.load_table(split(table))

    def pin(self, table: str, ref: str, snapshot_id: int, ancestors: int = 0) -> None:
        """Hold ``snapshot_id`` and as many of its ancestors by a ref of that name, so that nobody's expiry takes them;
        again is fine.

        Raises SnapshotMissingError, and ForeignWriteError if the name is taken by another ref.
        """
        self._committer.commit(
            {table: lambda document, _: _checks.pin_changes(table, document, ref, snapshot_id, ancestors)}
        )

    def unpin(self, table: str, ref: str) -> None:
        """Take the ref away if it is there."""

        def edit(document: Document, _: str) -> Changes:
            there = refs_of(document).get(ref)
            return Changes(drop=frozenset({ref} if there is not None and _checks.is_pin(ref, there) else ()))

        self._committer.commit({table: edit})

    def location(self, *parts: str) -> str:
        """The URI of a file under the warehouse."""
        return "/".join((self._warehouse, *parts))

    def read_text(self, uri: str) -> str:
        """Raises FileNotFoundError."""
        return self._documents.read_bytes(uri).decode()

    def write_text(self, uri: str, text: str) -> None:
        """Write or replace the file."""
        self._documents.write_bytes(uri, text.encode())

    def exists(self, uri: str) -> bool:
        return self._documents.exists(uri)

    def delete(self, uris: Iterable[str]) -> None:
        """Delete files; one that is not there, or cannot be deleted, is left as it is."""
        self._documents.delete(uris)

    def _read(self, table: str) -> Document:
        return self._committer.read([table])[table]


def _edits(publications: Sequence[Publication]) -> dict[str, Edit]:
    return {publication.table: partial(_publication_edit, publication=publication) for publication in publications}


def _publication_edit(document: Document, _: str, *, publication: Publication) -> Changes:
    return _checks.publication_changes(document, publication, new_snapshot_id(), now_ms())


def new_snapshot_id() -> int:
    """63 random bits: a positive long, as Iceberg's own ids."""
    return uuid.uuid4().int >> 65
