"""Pin the tables of unchanged SQL to snapshots.

The text is parsed to find where tables are named, and changed there and nowhere else: what an engine understands and
the parser only half does, comments and layout stay what they are. A pure function: no MetaService and no engine asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from airflow_barrier.protocol.errors import UnpinnableError
from airflow_barrier.protocol.levels import Resolution
from airflow_barrier.protocol.metadata import metadata_table
from airflow_barrier.reading._dialects import Pin, PinningDialect, dialect_named
from airflow_barrier.reading._names import Names, Parts, Place, is_cte
from airflow_barrier.reading._references import Edit, Reference, function, references, requalified, spliced
from airflow_barrier.reading._statement import Statement

__all__ = ["Pin", "Place", "Rewritten", "View", "pins_of", "rewrite"]

#: Names of the queryable metadata begin like this.
META = "__META_"
# Iceberg's metadata tables that tell about a table and show none of its rows.
ABOUT = frozenset(
    {"all_data_files", "all_delete_files", "all_entries", "all_files", "all_manifests", "data_files", "delete_files"}
    | {
        "entries",
        "files",
        "history",
        "manifests",
        "metadata_log_entries",
        "partitions",
        "properties",
        "refs",
        "snapshots",
    }
)
_DEEPEST = 16


@dataclass(frozen=True)
class View:
    """A view's query, and where it was made: what names in it lead to. ``columns``: as the view names them, if it
    does."""

    text: str
    place: Place
    columns: tuple[str, ...] = ()


Views = Callable[[Parts], "View | None"]
#: The name of a metadata table, in capitals -> what it is called where the query runs.
Metadata = Callable[[str], str]


@dataclass(frozen=True)
class Rewritten:
    """``sql`` reads ``pinned`` (table of the topology -> snapshot id), and as they are now: ``outside``, tables and
    functions that are not the topology's; ``about``, metadata tables of the topology's tables such as
    ``shop.a.snapshots``. ``meta``: the metadata tables `__META_...`. ``views`` were inlined. ``temporary`` views
    (quoted) read what they were made of. ``elsewhere``: those of ``outside`` that are called as a table of the
    topology, in another catalog; so they are that very table if the engine calls the topology's catalog so.
    """

    sql: str
    pinned: Mapping[str, int | None]
    outside: tuple[str, ...] = ()
    about: tuple[str, ...] = ()
    meta: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    temporary: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()


def rewrite(
    sql: str,
    dialect: str,
    pins: Mapping[str, Pin],
    *,
    catalog: str,
    place: Place | None = None,
    views: Views = lambda _: None,
    metadata: Metadata | None = None,
    unresolved: Collection[str] = (),
    refuse: Callable[[str], None] = lambda _: None,
) -> Rewritten:
    """The query ``sql`` with the tables of ``pins`` (``namespace.table`` in ``catalog``) at their snapshots.

    ``dialect``: `spark`, `duckdb` or `trino` (`athena`, `presto`). ``place``: where the session stands; else at the top
    of ``catalog``, and what is called as a table of ``pins`` without its namespace is refused. ``views`` is asked about
    every name that is neither a table of ``pins`` nor the query's own, with its catalog first. ``metadata`` says what
    the tables `__META_...` are called; without it their names stay. ``unresolved``: tables of the topology that the
    answer does not have, and so no query over it may read; ``refuse`` may say why it is not.

    Raises SqlSyntaxError, NotAReadError, UnpinnableError (an unresolved table, a table's own time travel, a name that
    is known at run time only, views that contain themselves), UnknownDialectError, and ConfigurationError for a name
    `__META_...` that is none.

    >>> rewrite("SELECT * FROM shop.a JOIN b", "spark", {"shop.a": Pin(7)}, catalog="lake")
    Rewritten(sql='SELECT * FROM shop.a VERSION AS OF 7 JOIN b', pinned={'shop.a': 7}, outside=('lake.b',), ...)
    """
    rewriting = _Rewriting(dialect_named(dialect), catalog, pins, views, metadata, unresolved, refuse)
    text = rewriting.text_of(sql, place or Place(catalog), ())
    return Rewritten(text, rewriting.pinned, *(tuple(sorted(found)) for found in rewriting.found))


def pins_of(resolution: Resolution, metadata: Mapping[str, str] | None = None) -> dict[str, Pin]:
    """Return what :func:`rewrite` takes; ``metadata`` (table -> where its document lies) for DuckDB."""
    return {
        table: Pin(resolved.snapshot_id, (metadata or {}).get(table)) for table, resolved in resolution.tables.items()
    }


@dataclass
class _Rewriting:
    dialect: PinningDialect
    catalog: str
    pins: Mapping[str, Pin]
    view_of: Views
    metadata: Metadata | None
    unresolved: Collection[str]
    refuse: Callable[[str], None]
    pinned: dict[str, int | None] = field(default_factory=dict)
    outside: set[str] = field(default_factory=set)
    about: set[str] = field(default_factory=set)
    meta: set[str] = field(default_factory=set)
    views: set[str] = field(default_factory=set)
    temporary: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._tables = Names({(self.catalog, *table.split(".")): table for table in (*self.unresolved, *self.pins)})

    @property
    def found(self) -> tuple[set[str], ...]:
        return self.outside, self.about, self.meta, self.views, self.temporary, self.elsewhere

    def text_of(self, sql: str, place: Place, inside: tuple[Parts, ...]) -> str:
        """The text with its tables pinned; ``inside``: the views that it stands in, outermost first."""
        what = f"view {'.'.join(inside[-1])}" if inside else "SQL"
        statement = Statement.of(sql, self.dialect.name, what)
        statement.require_no_names_by_pipes(what)
        edits: list[Edit] = []
        replaced: list[Parts] = []
        left: set[int] = set()
        for table in references(statement.tree):
            if is_cte(table, place):
                left.add(table.this.meta.get("start", -1))
                continue
            reference = Reference.of(statement, table, self.dialect, what)
            if reference is None:
                self.outside.add(f"{function(table)}()")
                continue
            edit = self._edit(reference, place, inside, replaced)
            if edit.text == reference.written:
                left.add(edit.start)
            edits.append(edit)
        statement.require_no_table_by_keyword(frozenset(left), self.dialect.hiding, what)
        edits += requalified(statement, replaced, what)
        return spliced(statement.text if inside else sql, edits)

    def _edit(self, reference: Reference, place: Place, inside: tuple[Parts, ...], replaced: list[Parts]) -> Edit:
        """Return what becomes of a table's name. Adds to ``replaced`` whose columns lose their qualifiers."""
        if place.is_temporary(reference.parts):
            self.temporary.add(self.dialect.quoted(*reference.parts))
            return reference.edit(reference.written)
        name = place.full_name(reference.parts, self.catalog, self.dialect)
        # In a view, names that lead elsewhere from where the query stands have to say where.
        written = self.dialect.quoted(*name) if inside else reference.written
        table = self._tables.get(name)
        if table is not None:
            if table not in self.pins:
                self.refuse(table)
                raise UnpinnableError(  # safety: no-table-of-the-topology-is-left-out
                    f"{reference.what}: expected tables that the answer has ({', '.join(sorted(self.pins))}), found "
                    f"{table}, which is of the same topology; resolve with it"
                )
            reference.require_no_time_travel(table)
            pin = self.pins[table]
            self.pinned[table] = pin.snapshot_id
            if not self.dialect.keeps_qualifiers(pin) and reference.alias is not None:
                replaced.append(name)
            return reference.edit(self.dialect.pinned(written, pin, reference.alias))
        if name[-1].upper().startswith(META):
            return self._metadata_edit(reference, name, replaced)
        if self._is_about(reference, name):
            return reference.edit(written)
        view = self.view_of(name)
        if view is None:
            self._require_no_table(reference, place)
            self.outside.add(".".join(name))
            for parts in (name, reference.parts):  # in the first a catalog may be taken for a namespace of Spark
                if self._leads_to_a_table((self.catalog, *parts[1:])):
                    self.elsewhere.add(".".join(parts))
            return reference.edit(written)
        reference.require_no_time_travel(".".join(name))
        _require_end(name, inside)
        self.views.add(".".join(name))
        if reference.alias is not None:
            replaced.append(name)
        columns = tuple(self.dialect.quoted(column) for column in view.columns)
        query = self.text_of(view.text, view.place, (*inside, name))
        return reference.edit(self.dialect.inlined(query, columns, reference.alias))

    def _metadata_edit(self, reference: Reference, name: Parts, replaced: list[Parts]) -> Edit:
        called = name[-1].upper()
        metadata_table(called)
        self.meta.add(called)
        if self.metadata is None:
            return reference.edit(reference.written)
        if reference.alias is not None:
            replaced.append(name)
        query = f"SELECT * FROM {self.dialect.quoted(self.metadata(called))}"
        return reference.edit(self.dialect.inlined(query, (), reference.alias))

    def _is_about(self, reference: Reference, name: Parts) -> bool:
        """Return whether it is a metadata table of a table, as in ``shop.a.snapshots`` or ``"a$snapshots"``."""
        table, selector = self._selected(name)
        if table is None:
            return False
        if selector not in ABOUT:
            raise UnpinnableError(  # safety: no-other-branch
                f"{reference.what}: expected table {table} to be read at the answer's snapshot, found {selector!r} of "
                "it: one query reads one barrier; ask for another barrier, or run it in an ordinary session"
            )
        self.about.add(f"{table}.{selector}")
        return True

    def _selected(self, name: Parts) -> tuple[str | None, str]:
        """The table that ``name`` selects something of, and what."""
        stem, _, selector = name[-1].rpartition("$") if "$" in name[-1] else ("", "", name[-1])
        return self._tables.get((*name[:-1], stem) if stem else name[:-1]), selector.lower()

    def _require_no_table(self, reference: Reference, place: Place) -> None:
        """Raise UnpinnableError for a name that may be a table's in the engine's own namespace, which nobody has
        said.
        """
        for table in (*self.unresolved, *self.pins) if len(reference.parts) == 1 and not place.namespace else ():
            if table.rpartition(".")[2].casefold() == reference.parts[0].casefold():
                raise UnpinnableError(  # safety: namespace-is-known
                    f"{reference.what}: expected names of tables with their namespace, since it was not said where the "
                    f"query stands, found {reference.written}, which may be {table}; write it so, or say the place "
                    "(place=Place(catalog, namespace))"
                )

    def _leads_to_a_table(self, name: Parts) -> bool:
        return self._tables.get(name) is not None or self._selected(name)[0] is not None


def _require_end(name: Parts, inside: tuple[Parts, ...]) -> None:
    if name in inside or len(inside) >= _DEEPEST:
        raise UnpinnableError(  # safety: views-end
            f"view {'.'.join(name)}: expected views that end at tables after at most {_DEEPEST} steps, found "
            f"{' -> '.join('.'.join(view) for view in (*inside, name))}"
        )
