"""Tables in a REST catalog: the server writes the documents, and is told what to change and what it has to find.

A table that another commit was faster with is read again and the edit asked again, as with an SQL catalog. After an
answer that was lost it is the same: an edit changes nothing that is done already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.errors import ConfigurationError, MissingTableError
from airflow_barrier.tables import STORAGE
from airflow_barrier.tables._catalog import Edit
from airflow_barrier.tables._creation import create_table
from airflow_barrier.tables._documents import Documents
from airflow_barrier.tables._here import AtOnce
from airflow_barrier.tables._metadata import Document, Snapshot, require_editable, snapshots_of
from airflow_barrier.tables._proof import prove
from airflow_barrier.tables._rest_changes import table_change
from airflow_barrier.tables._rest_server import RejectedError, RestServer
from airflow_barrier.tables._retries import OvertakenError, patiently, roll_forward, tirelessly
from airflow_barrier.tables.spark_catalog import SparkCatalog

if TYPE_CHECKING:
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema

#: Requests at once: no more than `requests` keeps connections for.
_AT_ONCE = 8
#: Beginnings of properties that let somebody in.
_SECRETS = ("credential", "token", "header.")


def connect(
    uri: str,
    warehouse: str,
    catalog_name: str,
    properties: Mapping[str, str],
    documents: Documents,
    *,
    atomic: bool,
) -> RestTables:
    server = RestServer(catalog_name, {**properties, "uri": uri})
    return RestTables(server, documents, f"{warehouse.rstrip('/')}/_barrier/catalog", atomic=atomic)


def spark_catalog(uri: str, warehouse: str, properties: Mapping[str, str]) -> SparkCatalog:
    """Properties of these names mean the same to both clients; the storage's do not, and the catalog may vend them."""
    own = {name: value for name, value in properties.items() if not name.startswith((*STORAGE, *_SECRETS))}
    secrets = {name: "as in the connection of the catalog" for name in properties if name.startswith(_SECRETS)}
    return SparkCatalog({"type": "rest", "uri": uri, **own}, secrets=secrets)


class RestTables:
    """Implements :class:`~airflow_barrier.tables._catalog.TableCatalog`.

    ``atomic``: edits of several tables go by one `transactions/commit`; else one table after the other.
    """

    table_properties: Mapping[str, str] = MappingProxyType({})
    database_url = None
    joining = None

    def __init__(self, server: RestServer, documents: Documents, folder: str, *, atomic: bool) -> None:
        self.atomic = atomic
        self._server = server
        self._documents = documents
        self._folder = folder
        self._at_once = AtOnce(_AT_ONCE)

    @property
    def catalog(self) -> RestCatalog:
        return self._server.catalog

    def close(self) -> None:
        self._server.close()
        self._at_once.close()

    def check(self) -> str:
        with self._server.translated():
            namespaces = len(self.catalog.list_namespaces())
        how = "in one step for all tables (tested when a barrier opens)" if self.atomic else "table by table"
        return f"Iceberg REST catalog at {self._server.uri}: {namespaces} namespaces, published {how}."

    def prove(self) -> None:
        prove(self, self._server, self._documents, self._folder)

    def read(self, tables: Iterable[str]) -> dict[str, Document]:
        return {table: document for table, (_, document) in self._load_all(tables).items()}

    def locations(self, tables: Iterable[str]) -> dict[str, str]:
        return {table: location for table, (location, _) in self._load_all(tables).items()}

    def create(self, table: str, schema: Schema, spec: PartitionSpec, properties: Mapping[str, str]) -> bool:
        return create_table(self.catalog, self._server.translated, table, schema, spec, properties)

    def commit(self, edits: Mapping[str, Edit]) -> dict[str, str]:
        if not edits:
            return {}
        if self.atomic and len(edits) > 1:
            return tirelessly(lambda: self._together(edits))
        return roll_forward(edits, self._load_all, self._commit_one)

    def reattach(self, tables: Mapping[str, tuple[str, int | None]]) -> list[str]:
        """A REST catalog's pointers are its own: only its operator can bring them back."""
        self._at_once(lambda each: self._require(each[0], *each[1]), list(tables.items()))
        return []

    def _require(self, table: str, metadata: str, snapshot_id: int | None) -> None:
        try:
            document = self.read([table])[table]
        except MissingTableError:
            document = None
        if document is not None and (snapshot_id is None or snapshot_id in snapshots_of(document)):
            return
        found = "no such table" if document is None else f"the table without snapshot {snapshot_id}"
        raise ConfigurationError(
            f"table {table}: expected the REST catalog at {self._server.uri} to have it as it was published, found "
            f"{found}. The catalog was lost or restored from an older backup: let its operator restore it, or register "
            f"the newest document beside {metadata} in it, then run recover again"
        )

    def _load_all(self, tables: Iterable[str]) -> dict[str, tuple[str, Document]]:
        names = sorted(set(tables))
        return dict(zip(names, self._at_once(self.current, names), strict=True))

    def current(self, table: str) -> tuple[str, Document]:
        return patiently()(self._load, table)

    def _load(self, table: str) -> tuple[str, Document]:
        answer = self._server.load(table)
        document: Document = answer["metadata"]
        require_editable(table, document)
        return answer.get("metadata-location") or f"{document['location']}/metadata/unknown", document

    def _commit_one(self, table: str, edit: Edit) -> str:
        with self._changes({table: edit}) as (seen, changes):
            if table not in changes:
                return seen[table]
            location = self._server.commit(table, changes[table])
        return location or seen[table]

    def _together(self, edits: Mapping[str, Edit]) -> dict[str, str]:
        with self._changes(edits) as (seen, changes):
            if not changes:
                return seen
            self._server.commit_together(
                [{"identifier": self._server.identifier(table), **change} for table, change in changes.items()]
            )
        # There are servers that drop a table's change and say that all is well: the tables themselves say what is left.
        loaded = self._load_all(changes)
        for table, (location, document) in loaded.items():
            if table_change(document, edits[table](document, location)) is not None:
                raise OvertakenError(  # safety: commits-are-looked-at
                    f"REST catalog at {self._server.uri}: expected {table} to be changed, as it said of a commit over "
                    f"{len(changes)} tables, found it is not; try again"
                )
        return {**seen, **{table: location for table, (location, _) in loaded.items()}}

    @contextmanager
    def _changes(self, edits: Mapping[str, Edit]) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
        """Return each table's metadata location and, for tables that change, the request to send."""
        names = sorted(edits)
        loaded = dict(zip(names, self._at_once(self._load, names), strict=True))
        seen = {table: location for table, (location, _) in loaded.items()}
        sent: dict[str, Any] = {}
        written: dict[str, Snapshot] = {}
        for table, (location, document) in loaded.items():
            changes = edits[table](document, location)
            change = table_change(document, changes)
            if change is not None:
                sent[table] = change
                if changes.snapshot is not None and changes.writes_list:
                    self._write_list(table, document, changes.snapshot)
                    written[table] = changes.snapshot
        try:
            yield seen, sent
        except RejectedError as error:
            now = {table: self._load(table) for table in seen}
            self._documents.delete(
                snapshot["manifest-list"]
                for table, snapshot in written.items()
                # something in between may have sent the commit twice: it is the second that is refused
                if snapshot["snapshot-id"] not in snapshots_of(now[table][1])  # safety: files-of-a-repeated-commit
            )
            if error.conflict or any(now[table][0] != location for table, location in seen.items()):
                raise OvertakenError(
                    f"REST catalog at {self._server.uri}: expected {', '.join(sent)} to stay as they are for a moment, "
                    f"found them changed by others ({error}); try again"
                ) from error
            raise ConfigurationError(
                f"REST catalog at {self._server.uri}: expected it to commit to {', '.join(sent)}, found that it "
                f"refuses: {error}; check what the connection's credentials may do, and the catalog's own log"
            ) from error

    def _write_list(self, table: str, document: Document, snapshot: Snapshot) -> None:
        """The empty list of manifests of a root without rows, which is the writer's to write."""
        with self._server.translated():
            io = self.catalog.load_table(table).io  # with the credentials that the catalog gives for this table
        self._documents.write_empty_manifest_list(snapshot, document["format-version"], io)
