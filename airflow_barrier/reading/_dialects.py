"""How each dialect says that a table is read at a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from airflow_barrier.protocol.errors import ConfigurationError, UnknownDialectError


@dataclass(frozen=True)
class Pin:
    """The snapshot that a table is read at, or None for a table that has no rows yet.

    ``metadata``: where the table's metadata document lies, which DuckDB needs, since it is given no catalog.
    """

    snapshot_id: int | None
    metadata: str | None = None


class PinningDialect(Protocol):
    """``written`` is a table's name as it is to stand in the text; ``alias`` the (quoted) name that a relation in its
    place has to bear, or None where the query itself gives it one.
    """

    #: What sqlglot calls it.
    name: str
    #: Functions that read tables which the text does not name, or not as of a snapshot.
    hiding: frozenset[str]
    #: What stands before a name in its place.
    prefixes: frozenset[str]
    #: Whether a name of two parts can begin with a catalog, and namespaces have parts of their own.
    nested_namespaces: bool

    def pinned(self, written: str, pin: Pin, alias: str | None) -> str: ...

    def keeps_qualifiers(self, pin: Pin) -> bool:
        """Return whether columns may go on to be qualified by more than the table's last name."""
        ...

    def inlined(self, query: str, columns: tuple[str, ...], alias: str | None) -> str:
        """A view's query in place of its name; ``columns`` (quoted) as the view names them."""
        ...

    def quoted(self, *parts: str) -> str: ...


class _Quoting:
    quote = '"'
    prefixes: frozenset[str] = frozenset()

    def quoted(self, *parts: str) -> str:
        return ".".join(self.quote + part.replace(self.quote, self.quote * 2) + self.quote for part in parts)

    def inlined(self, query: str, columns: tuple[str, ...], alias: str | None) -> str:
        return _aliased(_named(query, columns, self.quoted("v")), alias)


class Spark(_Quoting):
    name = "spark"
    quote = "`"
    hiding = frozenset({"identifier", "stream"})
    prefixes = frozenset({"stream"})
    nested_namespaces = True

    def pinned(self, written: str, pin: Pin, alias: str | None) -> str:
        if pin.snapshot_id is None:
            # Unlike a subquery, a sample keeps the table's whole name as qualifier of its columns.
            return f"({written} TABLESAMPLE (0 ROWS))"
        return f"{written} VERSION AS OF {pin.snapshot_id:d}"

    def keeps_qualifiers(self, pin: Pin) -> bool:
        return True

    def inlined(self, query: str, columns: tuple[str, ...], alias: str | None) -> str:
        relation = super().inlined(query, columns, alias)
        return relation if alias is None else f"({relation})"  # so that a sample may follow


class Trino(_Quoting):
    name = "trino"
    hiding = frozenset({"query", "table_changes"})
    nested_namespaces = False

    def pinned(self, written: str, pin: Pin, alias: str | None) -> str:
        if pin.snapshot_id is None:
            return _aliased(f"(SELECT * FROM {written} WHERE false)", alias)
        return f"{written} FOR VERSION AS OF {pin.snapshot_id:d}"

    def keeps_qualifiers(self, pin: Pin) -> bool:
        return pin.snapshot_id is not None


class DuckDB(_Quoting):
    name = "duckdb"
    hiding = frozenset({"query", "query_table"})
    nested_namespaces = False

    def pinned(self, written: str, pin: Pin, alias: str | None) -> str:
        if pin.metadata is None:
            raise ConfigurationError(
                f"table {written}: expected where its metadata document lies, found nothing; DuckDB has no catalog: "
                "give Pin(snapshot_id, metadata=...)"
            )
        location = "'" + pin.metadata.replace("'", "''") + "'"
        if pin.snapshot_id is None:
            return _aliased(f"(SELECT * FROM iceberg_scan({location}) WHERE false)", alias)
        return _aliased(f"iceberg_scan({location}, snapshot_from_id => {pin.snapshot_id:d})", alias)

    def keeps_qualifiers(self, pin: Pin) -> bool:
        return False


_TRINO = Trino()
_DIALECTS: dict[str, PinningDialect] = {
    "athena": _TRINO,
    "duckdb": DuckDB(),
    "presto": _TRINO,
    "spark": Spark(),
    "trino": _TRINO,
}


def dialect_named(name: str) -> PinningDialect:
    """Raises :class:`~airflow_barrier.protocol.errors.UnknownDialectError`, which names those there are."""
    if name not in _DIALECTS:
        raise UnknownDialectError(f"dialect: expected one of {', '.join(_DIALECTS)}, found {name!r}")
    return _DIALECTS[name]


def _named(query: str, columns: tuple[str, ...], alias: str) -> str:
    # The line break ends a comment that the query may end with.
    return f"(SELECT * FROM ({query}\n) AS {alias} ({', '.join(columns)}))" if columns else f"({query}\n)"


def _aliased(relation: str, alias: str | None) -> str:
    return relation if alias is None else f"{relation} AS {alias}"
