"""The marks that safety checks bear in the code, and the raises that should bear one."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import airflow_barrier
from airflow_barrier.protocol import errors

PACKAGE = Path(airflow_barrier.__file__).parent
#: Where an error that says "not safe" bears a mark. Airflow's rooms mostly hand on what these say; a check of their
#: own may bear one.
ROOMS = ("protocol", "metaservice", "tables", "sources", "sinks", "spark", "coordinator", "reading")
#: Errors that say "not there" or "not like that". Every other error of ours says that something would not be safe.
PLAIN = frozenset(
    {
        errors.ConfigurationError,
        errors.TopologyError,
        errors.UnknownTableError,
        errors.WireFormError,
        errors.UnknownTopologyError,
        errors.UnknownBarrierError,
        errors.UnknownRevisionError,
        errors.UnknownSinkError,
        errors.JobWithoutOutletsError,
        errors.DuplicateJobError,
        errors.MissingTableError,
        errors.StoreUnavailableError,
        errors.CatalogUnavailableError,
        errors.SourceUnavailableError,
        errors.SparkUnavailableError,
        errors.SinkUnavailableError,
        errors.SinkRefusedError,
        errors.CompactionError,
        errors.ExpiryError,
        errors.SqlSyntaxError,
        errors.UnknownDialectError,
    }
)
_MARK = re.compile(r"# safety: (?P<name>[a-z][a-z0-9-]*)$")


@dataclass(frozen=True, order=True)
class Mark:
    """``# safety: name`` on a line of a file (relative to the package)."""

    path: str
    line: int
    name: str


def files() -> Iterator[Path]:
    for room in ROOMS:
        yield from sorted((PACKAGE / room).rglob("*.py"))


def _everywhere() -> Iterator[Path]:
    """A mark that is not looked at would say that something is proven that is not."""
    yield from files()
    yield from sorted(file for file in PACKAGE.rglob("*.py") if file.relative_to(PACKAGE).parts[0] not in ROOMS)


def marks() -> list[Mark]:
    """All marks. A comment that begins like one and is none raises ValueError."""
    return [mark for file in _everywhere() for mark in _marks_in(file)]


def unmarked_raises() -> list[str]:
    """Where an error that says "not safe" is raised without a mark, as ``file:line error``.

    A raise in an ``except`` puts another error into words, and one in a function that does nothing but raise is
    marked where that function is called.
    """
    trees = {file: ast.parse(file.read_text()) for file in files()}
    raisers = {
        node.name: _error_of(node.body[-1], {})
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and _annotation(node) == "NoReturn"
    }
    found = []
    for file, tree in trees.items():
        marked = {mark.line for mark in _marks_in(file)}
        makers = {
            node.name: _annotation(node)
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name not in raisers
        }
        for node in _checks(tree):
            name = _raised_by(node, raisers) if isinstance(node, ast.Expr) else _error_of(node, makers)
            if name is not None and _says_unsafe(name) and not {node.lineno, node.end_lineno} & marked:
                found.append(f"airflow_barrier/{file.relative_to(PACKAGE)}:{node.lineno} {name}")
    return found


def _marks_in(file: Path) -> Iterator[Mark]:
    path = str(file.relative_to(PACKAGE))
    for token in tokenize.generate_tokens(io.StringIO(file.read_text()).readline):
        if token.type == tokenize.COMMENT and re.match(r"#\s*safety\b", token.string):
            match = _MARK.match(token.string)
            if match is None:
                raise ValueError(f"{path}:{token.start[0]}: expected '# safety: some-name', found {token.string!r}")
            yield Mark(path, token.start[0], match["name"])


def _checks(node: ast.AST) -> Iterator[ast.Raise | ast.Expr]:
    """Statements that may be a check: neither in an ``except`` nor in a function that does nothing but raise."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ExceptHandler):
            continue
        if isinstance(child, ast.FunctionDef) and _annotation(child) == "NoReturn":
            continue
        if isinstance(child, (ast.Raise, ast.Expr)):
            yield child
        yield from _checks(child)


def _annotation(function: ast.FunctionDef) -> str | None:
    return function.returns.id if isinstance(function.returns, ast.Name) else None


def _called(node: ast.expr | None) -> str | None:
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Name):
        return node.func.id
    return node.func.attr if isinstance(node.func, ast.Attribute) else None


def _error_of(node: ast.stmt, makers: dict[str, str | None]) -> str | None:
    """The name of the error that a raise raises; ``makers`` are functions that make errors."""
    name = _called(node.exc) if isinstance(node, ast.Raise) else None
    return None if name is None else makers.get(name) or name


def _raised_by(node: ast.Expr, raisers: dict[str, str | None]) -> str | None:
    name = _called(node.value)
    return None if name is None else raisers.get(name)


def _says_unsafe(name: str) -> bool:
    error = getattr(errors, name, None)
    return isinstance(error, type) and issubclass(error, errors.BarrierError) and error not in PLAIN
