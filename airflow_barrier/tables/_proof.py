"""Finding out, on scratch tables, whether a REST catalog keeps branches, and commits to several tables in one step.

Both are promised by servers that do not: some know no branches but take the commit that sets one, and move `main`
instead, which would show a staged epoch to every reader; some take `transactions/commit` and apply it table by table.
What was found good is remembered in a file beside the warehouse, so it costs once a deployment.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.names import Stamp
from airflow_barrier.tables._documents import Documents
from airflow_barrier.tables._drafts import now_ms
from airflow_barrier.tables._metadata import MAIN, Changes, Document, empty_root, refs_of
from airflow_barrier.tables._rest_server import RejectedError, RestServer
from airflow_barrier.tables._scratch import Proof, scratch_tables

if TYPE_CHECKING:
    from airflow_barrier.tables._catalog import TableCatalog

_TAG = "probe_tag"
_FLAG = "barrier.probe"


def prove(tables: TableCatalog, server: RestServer, documents: Documents, folder: str) -> None:
    """``folder``: where it is remembered. Raises ConfigurationError, which says what was found and what to do, and
    CatalogRefusedError.
    """
    address = f"{server.catalog.uri} {server.catalog.properties.get('prefix', '')}".strip()
    proof = Proof(documents, folder, address, "atomic" if tables.atomic else "roll-forward")
    if proof.recall() is not None:
        return
    with scratch_tables(server.catalog, server.translated, 2) as (first, second):
        _prove_branches(tables, server, first)
        if tables.atomic:
            _prove_one_step(tables, server, first, second)
    proof.remember(keeps_branches=True)


def _prove_branches(tables: TableCatalog, server: RestServer, table: str) -> None:
    branch = Stamp("probe", 1, 0, 1, "probe").branch
    tables.commit({table: lambda document, location: _root(document, location, branch)})
    found = {name: ref["type"] for name, ref in refs_of(tables.read([table])[table]).items()}
    if found != {branch: "branch", _TAG: "tag"}:
        raise ConfigurationError(  # safety: keeps-branches
            f"REST catalog at {server.uri}: expected it to keep the branch and the tag that a commit sets, and to "
            f"leave {MAIN} alone, found the refs {', '.join(sorted(found)) or 'none'} after it said that it had. "
            "Attempts are staged on branches of the table, which every reader would see there (Nessie is such a "
            "catalog: its own branches are none of Iceberg's). Take a catalog that keeps them, see docs/catalogs.md"
        )


def _root(document: Document, location: str, branch: str) -> Changes:
    """An empty attempt branch, as of a table without snapshots, and a tag."""
    if refs_of(document):
        return Changes()
    snapshot_id = uuid.uuid4().int >> 65
    manifest_list = f"{location.rpartition('/')[0]}/snap-{snapshot_id}-1-{uuid.uuid4()}.avro"
    root = empty_root(document, snapshot_id, manifest_list, {}, now_ms())
    return Changes({branch: snapshot_id}, {_TAG: snapshot_id}, snapshot=root, writes_list=True)


def _prove_one_step(tables: TableCatalog, server: RestServer, first: str, second: str) -> None:
    """The second table must be able to keep the first one from changing, whenever it is that it fails.

    Servers that only look at all requirements first, and then commit to one table after the other, are found out by a
    table that is changed twice: to refuse that is fine, and so is to do all of it.
    """
    uuids = {table: tables.read([table])[table]["table-uuid"] for table in (first, second)}
    another = str(uuid.uuid4())

    def flags(*names: str, uuid_of_second: str | None = None) -> list[dict[str, Any]]:
        expected = {**uuids, second: uuid_of_second or uuids[second]}
        changes = zip((first, second, second), names, strict=False)
        return [
            {
                "identifier": server.identifier(table),
                "requirements": [{"type": "assert-table-uuid", "uuid": expected[table]}],
                "updates": [{"action": "set-properties", "updates": {f"{_FLAG}.{name}": "set"}}],
            }
            for table, name in changes
        ]

    for changes, wanted in (
        (flags("a", "b", uuid_of_second=another), (set[str](),)),
        (flags("c", "d", "e"), (set[str](), {"c", "d", "e"})),
        (flags("f", "g"), ({"f", "g"},)),
    ):
        before = _flags(tables, first, second)
        rejected = _rejected(server, changes)
        found = _flags(tables, first, second) - before
        if found not in wanted and not found and rejected is not None:
            raise ConfigurationError(
                f"REST catalog at {server.uri}: expected it to take transactions/commit, as catalog_publish "
                f'"atomic" says, found that it refuses: {rejected}. Set catalog_publish to "roll-forward" in the '
                "connection, or let the catalog's operator switch it on"
            ) from rejected
        if found not in wanted:
            raise ConfigurationError(  # safety: atomic-is-proved
                f"REST catalog at {server.uri}: expected transactions/commit to change all tables or none, as "
                f'catalog_publish "atomic" says, found that it did a part ({len(found)} of {len(changes)} changes). '
                'Set catalog_publish to "roll-forward" in the connection: tables are then published one after the '
                "other, and readers who follow tags or the MetaService still see whole barriers only"
            )


def _rejected(server: RestServer, changes: Sequence[Mapping[str, Any]]) -> RejectedError | None:
    """Send the changes. Returns what the server has against them, if it says so."""
    try:
        server.commit_together(changes)
    except RejectedError as error:
        return error
    return None


def _flags(tables: TableCatalog, *names: str) -> set[str]:
    documents = tables.read(names).values()
    properties = {key for document in documents for key in document.get("properties") or {}}
    return {key.removeprefix(f"{_FLAG}.") for key in properties if key.startswith(_FLAG)}
