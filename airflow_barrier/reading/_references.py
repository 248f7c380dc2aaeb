"""Where a text names tables, and how what stands there is replaced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from sqlglot import exp

from airflow_barrier.protocol.errors import UnpinnableError
from airflow_barrier.reading._dialects import PinningDialect
from airflow_barrier.reading._names import Parts, unquoted
from airflow_barrier.reading._statement import Statement


@dataclass(frozen=True)
class Edit:
    """Characters ``start`` up to and without ``end`` are replaced."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Reference:
    """A table's name in the text: characters ``start`` up to and without ``end``.

    ``alias``: what a relation in its place has to be called (quoted), or None where the query gives it a name.
    """

    node: exp.Table
    parts: Parts
    written: str
    start: int
    end: int
    alias: str | None
    what: str

    @classmethod
    def of(cls, statement: Statement, table: exp.Table, dialect: PinningDialect, what: str) -> Reference | None:
        """None for a function that yields rows. Raises UnpinnableError for a name that the text does not say."""
        if isinstance(table.this, exp.Func):
            if function(table).lower() in dialect.hiding:
                _refuse_hidden(table, dialect, what)  # safety: names-are-in-the-text
            return None
        parts = table.parts
        if not all(isinstance(part, exp.Identifier) for part in parts):
            _refuse_hidden(table, dialect, what)  # safety: names-are-in-the-text
        if isinstance(table.parent, (exp.Describe, exp.Summarize)) or (
            # `STREAM a` is taken for a table of that name
            table.alias and not table.this.args.get("quoted") and table.name.lower() in dialect.prefixes
        ):
            _refuse_hidden(table, dialect, what)  # safety: names-are-in-the-text
        spans = [_span(statement, part, what) for part in parts]
        start, end = spans[0][0], spans[-1][1]
        alias = None if table.alias else dialect.quoted(table.name)
        names = tuple(part.name for part in parts)
        return cls(table, names, statement.text[start:end], start, end, alias, what)

    def edit(self, text: str) -> Edit:
        return Edit(self.start, self.end, text)

    def require_no_time_travel(self, table: str) -> None:
        if self.node.args.get("version") is not None or self.node.args.get("when") is not None:
            raise UnpinnableError(  # safety: no-time-travel-of-its-own
                f"{self.what}: expected {table} to be read at the answer's snapshot, found a version or time of its "
                "own (AS OF, AT): one query reads one barrier; leave it away and ask for the barrier of that time"
            )


def references(tree: exp.Expr) -> Iterator[exp.Table]:
    """Yield where rows are read from: not the names in hints, nor those that functions are defined by."""
    for table in tree.find_all(exp.Table):
        if table.find_ancestor(exp.Hint, exp.JoinHint, exp.UserDefinedFunction) is None:
            yield table


def function(table: exp.Table) -> str:
    return table.this.name if isinstance(table.this, exp.Anonymous) else table.this.key


def _span(statement: Statement, identifier: exp.Expr, what: str) -> tuple[int, int]:
    """Return where the identifier stands; the text there has to be it."""
    start, end = identifier.meta.get("start", 0), identifier.meta.get("end", -1) + 1
    there = statement.text[start:end]
    if there != identifier.name and not (there[:1] in "`\"'" and unquoted(there) == identifier.name):
        raise UnpinnableError(  # safety: spliced-where-the-name-is
            f"{what}: expected to find where the name {identifier.name!r} stands in the text, found {there!r} there; "
            "write the query without the syntax around it (pipes, for instance), and report it"
        )
    return start, end


def _refuse_hidden(table: exp.Table, dialect: PinningDialect, what: str) -> NoReturn:
    raise UnpinnableError(
        f"{what}: expected the name of a table or view to read rows from, found {table.sql(dialect.name)!r}, which "
        "cannot be pinned; write SELECT ... FROM the name itself"
    )


def requalified(statement: Statement, replaced: list[Parts], what: str) -> Iterator[Edit]:
    """Columns like ``shop.a.x`` of relations that are only called ``a`` now."""
    qualifiers = {tuple(p.casefold() for p in name[at:]) for name in replaced for at in range(len(name) - 1)}
    for column in statement.tree.find_all(exp.Column) if qualifiers else ():
        parts = _dotted(column)
        for length in range(len(parts) - 1, 1, -1):
            if tuple(part.name.casefold() for part in parts[:length]) in qualifiers:
                start = _span(statement, parts[0], what)[0]
                yield Edit(start, _span(statement, parts[length - 1], what)[0], "")
                break


def _dotted(column: exp.Column) -> list[exp.Expr]:
    """``lake.shop.a.st.x`` part by part: from the fifth on they are no longer the column's own."""
    parts = list(column.parts)
    node: exp.Expr = column
    while isinstance(node.parent, exp.Dot) and node.parent.this is node:
        node = node.parent
        parts.append(node.expression)
    return parts


def spliced(text: str, edits: list[Edit]) -> str:
    pieces, at = [], 0
    for edit in sorted(set(edits), key=lambda edit: edit.start):  # the parser may hold one name in two nodes
        pieces += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*pieces, text[at:]])
