"""Iceberg tables of format version 2 and 3, in one of the catalogs that :mod:`airflow_barrier.tables` lists."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.compaction import Reading
from airflow_barrier.protocol.errors import BarrierError, ConfigurationError, StagedTableError, Terminal
from airflow_barrier.protocol.names import Stamp
from airflow_barrier.protocol.snapshots import Told
from airflow_barrier.tables import _attempts, _checks, catalog_at
from airflow_barrier.tables._catalog import Drafts, Edit, Joining, TableCatalog
from airflow_barrier.tables._documents import Documents
from airflow_barrier.tables._drafts import now_ms
from airflow_barrier.tables._looking import Looking, Seen
from airflow_barrier.tables._manifests import reading, table_delta
from airflow_barrier.tables._metadata import (
    MAIN,
    Changes,
    Document,
    asked_for,
    deletes_old_documents,
    empty_root,
    given_back,
    is_wap_enabled,
    ref_of,
    refs_of,
    size_at,
    snapshots_of,
    taken_in,
)
from airflow_barrier.tables._pinned import pinned
from airflow_barrier.tables.port import Publication
from airflow_barrier.tables.schemas import differences, incompatibilities

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import StaticTable, Table
    from sqlalchemy import Connection

    from airflow_barrier.protocol.table import Table as DeclaredTable


@dataclass
class Staging:
    """Documents of a publish that were written ahead of its transaction. Made by :meth:`IcebergTables.staging`."""

    drafts: Drafts
    used: bool = False


class IcebergTables(Looking):
    """Implements :class:`~airflow_barrier.tables.port.TableFormat`. Touches database and storage on first use only.

    >>> with IcebergTables.connect("sqlite:////data/barrier.db", "/data/warehouse") as tables:  # doctest: +SKIP
    ...     tables.mains(["shop.shopping"])
    {'shop.shopping': 4711}
    """

    def __init__(self, committer: TableCatalog, documents: Documents, warehouse: str) -> None:
        self._committer = committer
        self._documents = documents
        self._warehouse = warehouse.rstrip("/")

    @classmethod
    def connect(
        cls,
        uri: str,
        warehouse: str,
        catalog_name: str = "lake",
        properties: Mapping[str, str] | None = None,
        *,
        atomic: bool = False,
    ) -> IcebergTables:
        """``uri``: of a REST catalog (`https://…`), a Hive Metastore (`thrift://…`) or AWS Glue (`glue://REGION`), or
        the SQLAlchemy URL of an SQL catalog's database. ``warehouse``: folder or URI of the warehouse, under which the
        protocol's own files lie.

        ``catalog_name`` is what an SQL catalog is called in Spark, where it is part of each table's key. ``properties``
        are pyiceberg's for the storage, such as `s3.endpoint`, and for the catalog's credentials. ``atomic``: the
        REST catalog is said to commit to several tables in one step, which :meth:`prove` tests. Raises
        :class:`~airflow_barrier.protocol.errors.ConfigurationError` for a URL that cannot be used.
        """
        properties = dict(properties or {})
        documents = Documents(properties)
        adapter = catalog_at(uri).load()
        committer = adapter.connect(uri, warehouse, catalog_name, properties, documents, atomic=atomic)
        return cls(committer, documents, warehouse)

    def __enter__(self) -> IcebergTables:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._committer.close()
        self._documents.close()

    @property
    def atomic(self) -> bool:
        return self._committer.atomic

    @property
    def database_url(self) -> str | None:
        return self._committer.database_url

    def can_be_moved_by(self, connection: Connection) -> bool:
        joining = self._committer.joining
        return joining is not None and joining.can_be_joined_by(connection)

    @property
    def catalog(self) -> Catalog:
        """pyiceberg's catalog over the same tables: to create, load and read them."""
        return self._committer.catalog

    def check(self) -> str:
        """One sentence about what is there. Raises CatalogUnavailableError."""
        return self._committer.check()

    def prove(self) -> None:
        self._committer.prove()

    # --- reading ----------------------------------------------------------------------------------

    def seen(self, tables: Iterable[str]) -> Seen:
        return Seen(self._committer.read(tables))

    def mains(self, tables: Sequence[str]) -> dict[str, int | None]:
        documents = self._committer.read(tables)
        return {table: ref_of(documents[table], MAIN) for table in tables}

    def currents(self, expected: Mapping[str, int | None]) -> dict[str, int | None]:
        documents = self._committer.read(expected)
        return {table: _checks.require_main(table, documents[table], at) for table, at in expected.items()}

    def heads(self, tables: Sequence[str], branch: str) -> dict[str, int]:
        found = {table: ref_of(document, branch) for table, document in self._committer.read(tables).items()}
        return {table: head for table, head in found.items() if head is not None}

    def documents_at(self, snapshots: Mapping[str, int | None]) -> dict[str, Document]:
        documents = self._committer.read(list(snapshots))
        return {table: pinned(table, documents[table], snapshot) for table, snapshot in snapshots.items()}

    def document_at(self, table: str, snapshot_id: int | None) -> tuple[str, Document]:
        """Return where the table's own document lies, and what :meth:`documents_at` makes of that, by one look."""
        location, document = self._committer.current(table)
        return location, pinned(table, document, snapshot_id)

    def wap_enabled(self, tables: Sequence[str]) -> dict[str, bool]:
        documents = self._committer.read(tables)
        return {table: is_wap_enabled(documents[table]) for table in tables}

    def deletes_old_metadata(self, tables: Sequence[str]) -> dict[str, bool | None]:
        documents = self._committer.read(tables)
        return {table: deletes_old_documents(documents[table]) for table in tables}

    def readings(self, tables: Sequence[str], target: int | None = None) -> dict[str, Reading]:
        heads = {table: (document, ref_of(document, MAIN)) for table, document in self._committer.read(tables).items()}
        return {
            table: reading(document, head, target, self._documents)
            for table, (document, head) in heads.items()
            if head is not None
        }

    def create(self, table: DeclaredTable) -> bool:
        from airflow_barrier.tables._declared import schema_of, spec_of

        schema = schema_of(table)
        return self._committer.create(table.name, schema, spec_of(table, schema), table.all_properties)

    def differences(self, table: DeclaredTable) -> list[str]:
        from airflow_barrier.tables._declared import schema_of

        return differences(self._read(table.name), schema_of(table).model_dump(mode="json", by_alias=True))

    def take_in(self, tables: Sequence[str]) -> None:
        self._committer.commit({table: lambda document, _: taken_in(document) for table in tables})

    def give_back(
        self,
        tables: Sequence[str],
        topology: str,
        held: Sequence[tuple[int, int]],
        kept_revisions: Collection[int] = (),
    ) -> None:
        def edit(document: Document, _: str) -> Changes:
            attempts = _checks.attempt_branches(document, topology, held, kept_revisions)
            return Changes(drop=attempts, drop_properties=given_back(document))

        self._committer.commit(dict.fromkeys(tables, edit))

    def drop_revision(self, tables: Sequence[str], topology: str, revision: int) -> None:
        def edit(document: Document, _: str) -> Changes:
            return Changes(drop=_checks.revision_branches(document, topology, revision))

        self._committer.commit(dict.fromkeys(tables, edit))

    # --- attempt branches -------------------------------------------------------------------------

    def prepare(
        self, bases: Mapping[str, int | None], stamp: Stamp, since: Mapping[str, int | None] = MappingProxyType({})
    ) -> Told:
        seen: dict[str, Document] = {}
        wanted = self._committer.table_properties

        def edit(document: Document, location: str, *, table: str, base: int | None) -> Changes:
            seen[table] = document
            if _attempts.branch_is_ready(table, document, stamp, base):
                return Changes()
            properties = asked_for(document, wanted)
            if base is not None:
                return Changes(branches={stamp.branch: base}, properties=properties)
            snapshot_id = new_snapshot_id()
            at = _manifest_list(location, snapshot_id)
            root = empty_root(document, snapshot_id, at, stamp.properties(), now_ms())
            return Changes({stamp.branch: snapshot_id}, snapshot=root, writes_list=True, properties=properties)

        self._committer.commit({table: partial(edit, table=table, base=base) for table, base in bases.items()})
        deltas = {
            table: table_delta(table, seen[table], start, end, self._documents)
            for table, start in since.items()
            if start is not None and (end := bases[table]) is not None
        }
        sizes = {table: size_at(seen[table], base) for table, base in bases.items()}
        return Told(
            {table: delta for table, delta in deltas.items() if delta is not None},
            {table: size for table, size in sizes.items() if size is not None},
        )

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
        joining = self._joining()
        if staging is None:
            return joining.join(connection, edits, {})
        staging.used = True
        return joining.join(connection, edits, staging.drafts)

    @contextmanager
    def staging(self, publications: Sequence[Publication]) -> Iterator[Staging]:
        joining = self._joining()
        staging = Staging(joining.draft(_edits(publications)) if publications else {})
        try:
            yield staging
        finally:
            if not staging.used:
                joining.discard(staging.drafts)

    def _joining(self) -> Joining:
        if self._committer.joining is None:
            raise ConfigurationError(
                "expected a catalog in a database, whose transactions a publish can join, found one that is not; "
                "publish without a transaction"
            )
        return self._committer.joining

    # --- revisions --------------------------------------------------------------------------------

    def schema_faults(self, table: str, snapshots: Sequence[int | None]) -> Sequence[str]:
        return incompatibilities(table, self._read(table), snapshots)

    # --- expiry -----------------------------------------------------------------------------------

    def drop_tags(self, tables: Sequence[str], tags: Sequence[str]) -> None:
        dropped = Changes(drop=frozenset(tags))
        self._committer.commit(dict.fromkeys(tables, lambda *_: dropped))

    # --- after a loss -----------------------------------------------------------------------------

    def metadata_locations(self, tables: Sequence[str]) -> dict[str, str]:
        return self._committer.locations(tables)

    def reattach(self, tables: Mapping[str, tuple[str, int | None]]) -> list[str]:
        return self._committer.reattach(tables)

    def folders(self, tables: Sequence[str]) -> dict[str, str]:
        """The URL of the folder that each table was made in."""
        return {table: str(document["location"]) for table, document in self._committer.read(tables).items()}

    # --- tables outside the topology, and files beside the tables ---------------------------------

    def load(self, table: str) -> Table:
        """pyiceberg's table, with its newest metadata."""
        self._committer.locations([table])  # which says what is wrong in our words
        return self.catalog.load_table(table)

    def load_at(self, table: str, snapshot_id: int | None) -> StaticTable:
        """pyiceberg's table, which knows of that snapshot alone (None: of none, and has no rows); it cannot be written
        to, nor refreshed.

        >>> tables.load_at("shop.shopping", 4711).scan(row_filter="amount > 3").to_arrow()  # doctest: +SKIP
        """
        from pyiceberg.catalog.noop import NoopCatalog
        from pyiceberg.table import StaticTable
        from pyiceberg.table.metadata import TableMetadataUtil

        live = self.load(table)
        metadata = TableMetadataUtil.parse_obj(self.documents_at({table: snapshot_id})[table])
        return StaticTable(live.name(), metadata, live.metadata_location, live.io, NoopCatalog("pinned"))

    @property
    def storage(self) -> Mapping[str, str]:
        """pyiceberg's properties for the storage, secrets among them."""
        return self._documents.properties

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

    def schema_at(self, table: str, snapshot_id: int | None) -> pa.Schema:
        """The table's columns at a snapshot as Arrow has them, UUIDs as the text that Spark makes of them.

        >>> tables.schema_at("shop.shopping", 4711).names  # doctest: +SKIP
        ['userId', 'itemId', 'amount']
        """
        return _as_arrow(self.load_at(table, snapshot_id).schema())

    def schema_of(self, table: DeclaredTable) -> pa.Schema:
        """The columns of a table that is yet to be made, as :meth:`schema_at` has them."""
        from airflow_barrier.tables._declared import schema_of

        return _as_arrow(schema_of(table))

    def batches(self, uris: Sequence[str], size: int) -> Iterator[pa.RecordBatch]:
        """The rows of Parquet files of the warehouse, one after the other, at most ``size`` in a batch."""
        from pyarrow import parquet

        for uri in uris:
            with self._documents.opened(uri) as file, parquet.ParquetFile(file) as rows:
                yield from rows.iter_batches(size)

    def row_counts(self, table: str, snapshot_ids: Collection[int]) -> dict[int, int]:
        """Return how many rows the table has at each snapshot, as far as their summaries tell; changes nothing."""
        snapshots = snapshots_of(self._read(table))
        counts = {each: snapshots[each]["summary"].get("total-records") for each in snapshot_ids if each in snapshots}
        return {each: int(count) for each, count in counts.items() if count is not None}

    def location(self, *parts: str) -> str:
        """The URI of a file under the warehouse."""
        return "/".join((self._warehouse, *parts))

    def read_text(self, uri: str) -> str:
        """Raises FileNotFoundError."""
        return self._documents.read_bytes(uri).decode()

    def write_text(self, uri: str, text: str) -> None:
        """Write or replace the file."""
        self._documents.write_bytes(uri, text.encode())

    def created(self, uri: str) -> AbstractContextManager[Any]:
        """A new file, to be written piece by piece. Once the block has ended without an error it is there, and durable.

        After an error an object store may have a part of it.
        """
        return self._documents.created(uri)

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder; none if it is not there. Raises ConfigurationError."""
        return self._documents.names(folder)

    def exists(self, uri: str) -> bool:
        return self._documents.exists(uri)

    def delete(self, uris: Iterable[str]) -> None:
        """Delete files, and local folders that are empty then; what cannot be deleted is left as it is."""
        uris = list(uris)
        self._documents.delete(uris)
        self._documents.delete_if_empty(sorted({uri.rpartition("/")[0] for uri in uris}))

    def clear(self, folder: str) -> None:
        """Delete the files of a folder, and the folder; what cannot be deleted is left as it is."""
        self._documents.clear(folder)

    def _read(self, table: str) -> Document:
        return self._committer.read([table])[table]


def _edits(publications: Sequence[Publication]) -> dict[str, Edit]:
    return {publication.table: partial(_publication_edit, publication=publication) for publication in publications}


def _publication_edit(document: Document, location: str, *, publication: Publication) -> Changes:
    new_id = new_snapshot_id()
    return _checks.publication_changes(document, publication, new_id, _manifest_list(location, new_id), now_ms())


def _manifest_list(location: str, snapshot_id: int) -> str:
    """Return where the list of an empty snapshot is written, for a table whose document lies at ``location``."""
    return f"{location.rpartition('/')[0]}/snap-{snapshot_id}-1-{uuid.uuid4()}.avro"


def new_snapshot_id() -> int:
    """63 random bits: a positive long, as Iceberg's own ids."""
    return uuid.uuid4().int >> 65


def _as_arrow(schema: Schema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            field.with_type(pa.string()) if str(field.type).startswith("extension<arrow.uuid") else field
            for field in schema.as_arrow()
        ]
    )
