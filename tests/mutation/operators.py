"""What a marked check is without itself: one or more changes of a file's syntax tree, told from what the mark's line
begins with. (Where the formatter has put a mark behind a closing bracket, the line of the opening one counts.)

| the line begins with                           | the check is taken out by                                  |
| ---------------------------------------------- | ---------------------------------------------------------- |
| ``raise``, or a call as a statement            | leaving the statement out                                  |
| ``if`` whose body leaves (return, raise, …)    | never going there                                          |
| ``if`` with another body                       | never, and always, going there: two mutants                |
| ``and``/``or``, ``if`` of a comprehension      | leaving the condition out                                  |
| ``.where(`` of several conditions              | leaving the last one out                                   |
| another ``.method(``                           | leaving the call out of the chain                          |
| an argument, an element                        | leaving it out                                             |
| what ``all(…)`` asks of each                   | True                                                       |
| ``name=True`` or ``name=False``                | the opposite                                               |
| ``return`` of a function that returns a bool   | ``return True``                                            |
| a statement or argument ``a if b else c``      | ``c``                                                      |
| ``NAME = frozenset({…})``                      | leaving out one element: a mutant each                     |
| ``NAME = {State.A: frozenset({…}), …}``        | allowing all states after one of them: a mutant each       |
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TypeVar

_N = TypeVar("_N", bound=ast.AST)


def labels(source: str, lines: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Each mutant of a file, by its line and what is done there. Raises ValueError for a line that holds no check."""
    tree = ast.parse(source)
    parents = _parents(tree)
    for line in lines:
        changes = _changes(tree, parents, source, line)
        if not changes:
            raise ValueError(f"line {line} does not begin with a check that can be taken out: see {__name__}")
        yield from ((line, label) for label, _, _ in changes)


def mutant(source: str, line: int, label: str) -> ast.Module:
    """The tree of the whole file after that."""
    tree = ast.parse(source)
    old, new = next((old, new) for found, old, new in _changes(tree, _parents(tree), source, line) if found == label)
    _Replace(old, new).visit(tree)
    return ast.fix_missing_locations(tree)


def _parents(tree: ast.Module) -> dict[ast.AST, ast.AST]:
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


_Change = tuple[str, ast.AST, "ast.AST | None"]


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST | None) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST | None:
        if node is not self._old:
            return self.generic_visit(node)
        return self._new if self._new is None else ast.copy_location(self._new, node)


def _changes(tree: ast.Module, parents: dict[ast.AST, ast.AST], source: str, line: int) -> list[_Change]:
    lines = source.splitlines()
    if lines[line - 1].lstrip().startswith(")"):
        line = _opening(tree, line, lines[line - 1].index(")") + 1)
    text = lines[line - 1]
    start = len(text) - len(text.lstrip())
    statement = next((node for node in _at(tree, ast.stmt, line, start)), None)
    if statement is not None:
        return _of_statement(statement, parents)
    if text.lstrip().startswith("."):
        return _of_chain(tree, line, start)
    for word in ("and ", "or ", "if "):
        if text.lstrip().startswith(word):
            start += len(word)
    while text[start] == "(":
        start += 1
    for node in _at(tree, ast.AST, line, start):
        if change := _of_part(node, parents[node]):
            return [change]
    return []


def _opening(tree: ast.AST, line: int, column: int) -> int:
    """Where what ends with this closing bracket begins: the innermost call, else the statement."""
    calls = [
        (node.func.end_lineno or 0)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and (node.end_lineno, node.end_col_offset) == (line, column)
    ]
    heads = [
        node.lineno for node in ast.walk(tree) if isinstance(node, ast.If) and node.lineno < line < node.body[0].lineno
    ]
    return max(calls or heads)


def _at(tree: ast.AST, kind: type[_N], line: int, column: int) -> Iterator[_N]:
    """Nodes that begin there, outer ones first."""
    for node in ast.walk(tree):
        if isinstance(node, kind) and (getattr(node, "lineno", 0), getattr(node, "col_offset", 0)) == (line, column):
            yield node


def _of_statement(node: ast.stmt, parents: dict[ast.AST, ast.AST]) -> list[_Change]:
    chosen = [part for part in ast.walk(node) if isinstance(part, ast.IfExp) and part.lineno == node.lineno]
    if len(chosen) == 1 and isinstance(node, (ast.Assign, ast.Return)):
        return [("the other branch", chosen[0], chosen[0].orelse)]
    if isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return [("left out", node, ast.Pass())]
    if isinstance(node, ast.If):
        never, always = ("never", node.test, ast.Constant(False)), ("always", node.test, ast.Constant(True))
        leaves = isinstance(node.body[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))
        return [never] if leaves else [never, always]
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node in parents and isinstance(parents[node], ast.Module):
        return _of_constant(node.value)
    if isinstance(node, ast.Return) and node.value is not None and _returns_bool(node, parents):
        return [("True", node.value, ast.Constant(True))]
    return []


def _returns_bool(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    while not isinstance(node, ast.FunctionDef):
        node = parents[node]
    return isinstance(node.returns, ast.Name) and node.returns.id == "bool"


def _of_constant(value: ast.expr | None) -> list[_Change]:
    if isinstance(value, ast.Call) and value.args and isinstance(value.args[0], ast.Set):
        return [(f"without {ast.unparse(element)}", element, None) for element in value.args[0].elts]
    if isinstance(value, ast.Dict):
        return [
            (f"anything after {ast.unparse(key)}", allowed, _all_of(key.value))
            for key, allowed in zip(value.keys, value.values, strict=True)
            if isinstance(key, ast.Attribute)
        ]
    return []


def _all_of(states: ast.expr) -> ast.Call:
    return ast.Call(ast.Name("frozenset", ast.Load()), [states], [])


def _of_chain(tree: ast.Module, line: int, start: int) -> list[_Change]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        begins = node.func.end_lineno == line and node.func.end_col_offset == start + 1 + len(node.func.attr)
        if begins and node.func.attr == "where" and len(node.args) > 1:
            return [("without its last condition", node.args[-1], None)]
        if begins:
            return [("left out", node, node.func.value)]
    return []


def _of_part(node: ast.AST, parent: ast.AST) -> _Change | None:
    if isinstance(parent, ast.BoolOp) and isinstance(node, ast.expr):
        rest = [value for value in parent.values if value is not node]
        return "left out", parent, rest[0] if len(rest) == 1 else ast.BoolOp(parent.op, rest)
    if isinstance(parent, ast.comprehension) and node in parent.ifs:
        return "left out", node, None
    if isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool):
        return f"{node.arg}={not node.value.value}", node.value, ast.Constant(not node.value.value)
    if isinstance(node, ast.IfExp):
        return "the other branch", node, node.orelse
    if isinstance(parent, ast.GeneratorExp) and node is parent.elt:
        return "True", node, ast.Constant(True)
    of_call = isinstance(parent, ast.Call) and node in (*parent.args, *parent.keywords)
    if of_call or isinstance(parent, (ast.Set, ast.Tuple, ast.List)):
        return "left out", node, None
    return None
