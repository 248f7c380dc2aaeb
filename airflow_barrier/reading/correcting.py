"""A statement that corrects a table, as its author writes it: with plain names."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import Dialect, exp
from sqlglot.errors import ParseError, TokenError

from airflow_barrier.protocol.errors import ConfigurationError, SqlSyntaxError
from airflow_barrier.reading._dialects import dialect_named
from airflow_barrier.reading._names import Names, Parts, Place, is_cte
from airflow_barrier.reading._references import Edit, Reference, references, requalified, spliced
from airflow_barrier.reading._statement import Statement
from airflow_barrier.reading.rewriting import ABOUT
from airflow_barrier.spark.corrections import CorrectBySql

_CHANGES = (exp.Delete, exp.Update, exp.Merge, exp.Insert)


def correct_by_sql(
    sql: str, table: str, *, catalog: str, pins: Mapping[str, int | None], place: Place | None = None
) -> CorrectBySql:
    """The correction of ``table`` (``namespace.table``) that ``sql``, one statement of Spark, is.

    ``catalog`` is what Spark calls the topology's catalog. ``pins``: tables of the topology and the snapshot that each
    is read at, those of the old revision at the corrected barrier; other tables are read as they are when it runs.
    ``place``: where names without catalog and namespace lead; else at the top of ``catalog``, where only the corrected
    table itself needs no namespace.

    Raises :class:`~airflow_barrier.protocol.errors.SqlSyntaxError`,
    :class:`~airflow_barrier.protocol.errors.UnpinnableError` (a name that is known at run time only, time travel of a
    table of ``pins``), and :class:`~airflow_barrier.protocol.errors.ConfigurationError` for anything but one DELETE,
    UPDATE, MERGE or INSERT of ``table``.

    >>> correct_by_sql("DELETE FROM shop.a WHERE id IN (SELECT id FROM shop.b)", "shop.a", catalog="lake",
    ...                pins={"shop.b": 7}).statement
    'DELETE FROM {target:shop.a} AS `a` WHERE id IN (SELECT id FROM {read:shop.b} AS `b`)'
    """
    what = f"correction of {table}"
    statement = _statement(sql, table, what)
    return _Placing(statement, table, catalog, pins, place or Place(catalog), what).correction()


class _Placing:
    """Puts placeholders where tables of the topology are named."""

    def __init__(
        self, statement: Statement, table: str, catalog: str, pins: Mapping[str, int | None], place: Place, what: str
    ) -> None:
        self._statement, self._table, self._catalog, self._pins = statement, table, catalog, pins
        self._place, self._what = place, what
        self._dialect = dialect_named("spark")
        self._tables = Names({(catalog, *known.split(".")): known for known in (*pins, table)})
        written = statement.tree.this
        self._target = written.this if isinstance(written, exp.Schema) else written
        self._edits: list[Edit] = []
        self._replaced: list[Parts] = []
        self._reads: dict[str, int | None] = {}

    def correction(self) -> CorrectBySql:
        left: set[int] = set()
        self._statement.require_no_names_by_pipes(self._what)
        for node in references(self._statement.tree):
            if is_cte(node, self._place):
                left.add(node.this.meta.get("start", -1))
                continue
            reference = Reference.of(self._statement, node, self._dialect, self._what)
            if reference is None:  # a function that yields rows
                continue
            if node is self._target or not self._place_in(reference):
                left.add(reference.start)
            if node is self._target:
                self._place_target(reference)
        self._statement.require_no_table_by_keyword(frozenset(left), self._dialect.hiding, self._what)
        edits = [*self._edits, *requalified(self._statement, self._replaced, self._what)]
        return CorrectBySql(self._table, spliced(self._statement.text, edits), self._reads)

    def _place_target(self, reference: Reference) -> None:
        name = self._full_name(reference)
        bare = len(reference.parts) == 1 and self._place.same(reference.parts[0], self._table.rpartition(".")[2])
        if self._tables.get(name) != self._table and not (bare and not self._place.namespace):
            raise ConfigurationError(  # safety: corrects-its-table
                f"{self._what}: expected a statement that changes {self._table}, found one that changes "
                f"{reference.written}; a correction is about one table: give each of them its own"
            )
        self._replace(reference, name, f"{{target:{self._table}}}", isinstance(self._statement.tree, exp.Insert))

    def _place_in(self, reference: Reference) -> bool:
        """False for a table that is none of the topology's, and is left as it is written."""
        if self._place.is_temporary(reference.parts):
            return False
        name = self._full_name(reference)
        table = self._tables.get(name)
        if table is None:
            self._require_no_table(reference, name)
            return False
        reference.require_no_time_travel(table)
        if table == self._table:
            self._replace(reference, name, f"{{target:{table}}}")
        else:
            self._reads[table] = self._pins[table]
            self._replace(reference, name, f"{{read:{table}}}")
        return True

    def _replace(self, reference: Reference, name: Parts, placeholder: str, plain: bool = False) -> None:
        """``plain``: where no alias may follow."""
        if plain or reference.alias is None:
            self._edits.append(reference.edit(placeholder))
            return
        self._replaced.append(name)
        self._edits.append(reference.edit(f"{placeholder} AS {reference.alias}"))

    def _full_name(self, reference: Reference) -> Parts:
        return self._place.full_name(reference.parts, self._catalog, self._dialect)

    def _require_no_table(self, reference: Reference, name: Parts) -> None:
        part_of = self._tables.get(name[:-1])
        bare = len(reference.parts) == 1 and not self._place.namespace
        may_be = [
            table
            for table in (*self._pins, self._table)
            if bare and self._place.same(table.rpartition(".")[2], reference.parts[0])
        ]
        if may_be or (part_of is not None and name[-1].lower() not in ABOUT):
            raise ConfigurationError(  # safety: correction-reads-pinned
                f"{self._what}: expected tables of the topology with their namespace and nothing behind it, found "
                f"{reference.written}; write {may_be[0] if may_be else part_of}"
            )


def _statement(sql: str, table: str, what: str) -> Statement:
    grammar = Dialect.get_or_raise("spark")
    try:
        tokens = grammar.tokenize(sql)
        trees = [
            tree for tree in grammar.parser().parse(tokens, sql) if not isinstance(tree, (type(None), exp.Semicolon))
        ]
    except (ParseError, TokenError, RecursionError) as error:
        raise SqlSyntaxError(
            f"{what}: expected one statement of Spark SQL, found text that cannot be read: "
            f"{str(error).strip().partition(chr(10))[0]}; where Spark does understand it, make "
            f"CorrectBySql({table!r}, ...) of it, with {{target:{table}}} for the table"
        ) from error
    if len(trees) != 1:
        raise ConfigurationError(f"{what}: expected one statement, found {len(trees)}; make one of them (MERGE INTO)")
    (tree,) = trees
    if not isinstance(tree, _CHANGES):
        raise ConfigurationError(
            f"{what}: expected DELETE, UPDATE, MERGE or INSERT, found {tree.key.upper()}; a correction changes rows: a "
            "table of another shape is a new table"
        )
    return Statement(sql, tree, tokens)
