"""DuckDB over one consistent answer: each table a view of its own name, whose rows DuckDB reads from the table's files.

A view scans a copy of the table's metadata document that knows of one snapshot only, in a temporary folder. So nothing
else can be read, commits and trimmed metadata do not matter, and filters and columns get down to the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import msgspec

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.levels import Resolution
from airflow_barrier.protocol.metadata import METADATA_TABLES
from airflow_barrier.reading.metadata import MetadataRows

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from airflow_barrier.metaservice.store import MetaService
    from airflow_barrier.reading.pinned import Pinned
    from airflow_barrier.tables.iceberg import IcebergTables

_LOCAL = frozenset({"", "file"})
_S3 = frozenset({"s3", "s3a", "s3n"})
# pyiceberg's property -> the option of a DuckDB secret
_SECRET = {
    "access-key-id": "KEY_ID",
    "secret-access-key": "SECRET",
    "session-token": "SESSION_TOKEN",
    "region": "REGION",
}


@contextmanager
def duckdb_connection(
    tables: IcebergTables, resolution: Resolution, catalog: str, meta: MetaService | None = None
) -> Iterator[DuckDBPyConnection]:
    """A connection to a database in memory with a view for each table of ``resolution``, until the context ends.

    Tables are ``catalog.namespace.table``, and ``namespace.table`` without it; with one namespace only, ``table`` will
    do. What does not lie in the local file system or in S3, DuckDB does not read here: for a snapshot in other storage
    there is ``tables.load_at(table, snapshot_id).scan()``. Nothing is fetched from the network but the tables' files.
    With ``meta`` the metadata tables `__META_...` are there too; each read of them is as of then.

    Raises ConfigurationError (DuckDB or an extension of it is missing, other storage, names that DuckDB takes for one)
    and SnapshotMissingError.

    >>> with duckdb_connection(deployment.tables, resolution, "lake") as connection:  # doctest: +SKIP
    ...     connection.sql("SELECT a.itemId, amount / price FROM shop.amount a JOIN shop.price USING (itemId)").df()
    """
    require_duckdb()
    from duckdb import connect

    snapshots = {table: resolved.snapshot_id for table, resolved in resolution.tables.items()}
    documents = tables.documents_at(snapshots)
    _require_distinct_names(documents)
    with TemporaryDirectory(prefix="airflow-barrier-") as folder:
        offline: dict[str, str | bool | int | float | list[str]] = {
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        with connect(config=offline) as connection:
            load_extension(connection, "avro")
            load_extension(connection, "iceberg")
            _reach(connection, {str(document["location"]) for document in documents.values()}, tables.storage)
            _make_views(connection, catalog, documents, Path(folder))
            if meta is not None:
                for name in METADATA_TABLES:
                    connection.register(name, MetadataRows(meta, name))
            yield connection


@contextmanager
def running(answer: Pinned, connection: DuckDBPyConnection, sql: str) -> Iterator[DuckDBPyRelation]:
    """The rows of one query that writes nothing, over a connection of the session; fetch them in the context.

    Raises SqlSyntaxError, NotAReadError, ConfigurationError (DuckDB cannot run it), and for a table of the topology
    that the answer does not have UnknownTableError, naming the first barrier that has it, or UnpinnableError.
    """
    import duckdb

    from airflow_barrier.reading._statement import Statement
    from airflow_barrier.reading.rewriting import Place, pins_of

    statement = Statement.of(sql, "duckdb")
    try:
        yield connection.sql(statement.text)
    except duckdb.Error as error:
        found = answer.resolution
        namespaces = {table.rpartition(".")[0] for table in found.tables}
        place = Place(answer.catalog, tuple(namespaces.pop().split(".")) if len(namespaces) == 1 else ())
        answer.rewritten(sql, "duckdb", pins_of(found, dict.fromkeys(found.tables, "")), place=place)
        raise ConfigurationError(f"SQL: expected a query that DuckDB can run, found that {error}") from error


def require_duckdb() -> None:
    """Raises ConfigurationError if it is not there."""
    if find_spec("duckdb") is None:
        raise ConfigurationError(
            "expected the package duckdb beside airflow_barrier, found none; install it, for instance by pip install "
            "'airflow-provider-barrier[duckdb]'"
        )


def load_extension(connection: DuckDBPyConnection, extension: str) -> None:
    """Load an extension from its package, else as it was installed for this user of the machine."""
    import duckdb

    package = find_spec(f"duckdb_extension_{extension}")
    folders = [] if package is None else list(package.submodule_search_locations or ())
    file = f"extensions/v{duckdb.__version__}/{extension}.duckdb_extension"
    path = next((path for folder in folders if (path := Path(folder) / file).exists()), None)
    try:
        connection.execute(f"LOAD {extension}" if path is None else f"LOAD {_literal(str(path))}")
    except duckdb.Error as error:
        raise ConfigurationError(
            f"DuckDB {duckdb.__version__}: expected its extension {extension}, found that it cannot be loaded "
            f"({str(error).splitlines()[0]}); install it for this version, for instance by pip install "
            "'airflow-provider-barrier[duckdb]'"
        ) from error


def _require_distinct_names(documents: Mapping[str, dict[str, Any]]) -> None:
    """Raise ConfigurationError for columns such as `id` and `ID`: DuckDB reads the first one for both."""
    from pyiceberg.table.metadata import TableMetadataUtil

    found = [
        *_taken_for_one("tables", documents),
        *_taken_for_one("namespaces", {table.rpartition(".")[0] for table in documents}),
    ]
    for table, document in documents.items():
        columns = TableMetadataUtil.parse_obj(document).schema().column_names
        found += _taken_for_one(f"columns of table {table}:", columns)
    if found:
        raise ConfigurationError(
            f"expected names that differ in more than capitals, since DuckDB takes such for one, found {found[0]}; "
            "read them by Spark with spark.sql.caseSensitive=true, or by pyiceberg: session.table(name).scan()"
        )


def _taken_for_one(kind: str, names: Iterable[str]) -> list[str]:
    """Return the pairs of names that DuckDB does not tell apart: it compares them with the letters A to Z folded."""
    first: dict[bytes, str] = {}
    return [
        f"{kind} {other} and {name}"
        for name in sorted(names)
        if (other := first.setdefault(name.encode().lower(), name)) != name
    ]


def _reach(connection: DuckDBPyConnection, locations: set[str], storage: Mapping[str, str]) -> None:
    """Let the connection read where the tables lie."""
    schemes = {urlparse(location).scheme for location in locations}
    if other := sorted(schemes - _LOCAL - _S3):
        raise ConfigurationError(
            f"expected tables in the local file system or in S3, which DuckDB reads, found {', '.join(other)}; "
            "read them by pyiceberg: tables.load_at(table, snapshot_id).scan()"
        )
    if not schemes & _S3:
        return
    load_extension(connection, "httpfs")
    options = {option: storage.get(f"s3.{name}", storage.get(f"client.{name}")) for name, option in _SECRET.items()}
    if endpoint := storage.get("s3.endpoint"):
        parts = urlparse(endpoint)
        virtual = storage.get("s3.force-virtual-addressing", "false").lower() == "true"
        options["ENDPOINT"] = f"{parts.netloc}{parts.path}".rstrip("/") if parts.netloc else endpoint
        options["USE_SSL"] = "false" if parts.scheme == "http" else "true"
        options["URL_STYLE"] = "vhost" if virtual else "path"
    given = ", ".join(f"{option} {_literal(value)}" for option, value in options.items() if value is not None)
    connection.execute(f"CREATE SECRET tables_of_the_answer (TYPE s3{', ' if given else ''}{given})")


def _make_views(
    connection: DuckDBPyConnection, catalog: str, documents: Mapping[str, Mapping[str, Any]], folder: Path
) -> None:
    import duckdb

    try:
        connection.execute(f"ATTACH ':memory:' AS {_quoted(catalog)}")
    except duckdb.BinderException as error:
        raise ConfigurationError(
            f"expected a catalog's name that DuckDB can use too, found {catalog!r} ({error}); read the tables by "
            "pyiceberg: tables.load_at(table, snapshot_id).scan()"
        ) from error
    namespaces = sorted({table.rpartition(".")[0] for table in documents})
    for namespace in namespaces:
        connection.execute(f"CREATE SCHEMA {_quoted(catalog, namespace)}")
    for number, (table, document) in enumerate(documents.items()):
        path = folder / f"{number}.metadata.json"
        path.write_bytes(msgspec.json.encode(document))
        namespace, _, name = table.rpartition(".")
        connection.execute(
            f"CREATE VIEW {_quoted(catalog, namespace, name)} AS SELECT * FROM iceberg_scan({_literal(str(path))})"
        )
    connection.execute(f"USE {_quoted(catalog, *namespaces) if len(namespaces) == 1 else _quoted(catalog)}")


def _quoted(*parts: str) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
