"""Putting a mutant in place of the living code, without touching a file. For a process that ends afterwards."""

from __future__ import annotations

import ast
import importlib.machinery
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from sqlalchemy import MetaData

from tests.mutation.marks import PACKAGE
from tests.mutation.operators import mutant

#: Its marks are in tables, which a migration makes.
SCHEMA = "metaservice/schema.py"


def apply(path: str, line: int, label: str) -> None:
    """Take out the check at ``line`` of ``path`` (in the package) as ``label`` says."""
    file = PACKAGE / path
    source = file.read_text()
    tree = mutant(source, line, label)
    name = ".".join(("airflow_barrier", *Path(path).with_suffix("").parts)).removesuffix(".__init__")
    module = sys.modules.get(name)
    if module is None:
        _when_loaded(file, compile(tree, str(file), "exec"))
        return
    scope = _scope(ast.parse(source), line)
    if path == SCHEMA:
        _replace_table(module, tree, line)
    elif scope:
        function = _living(module, scope)
        function.__code__ = _code(compile(tree, str(file), "exec"), scope)
    else:
        _replace_constant(module, tree, line)


def _scope(tree: ast.AST, line: int) -> list[str]:
    """The names that lead to the outermost function around the line, through classes; none: the line is outside."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or not node.lineno <= line <= (node.end_lineno or 0):
            continue
        return [node.name] if isinstance(node, ast.FunctionDef) else [node.name, *_scope(node, line)]
    return []


def _living(module: ModuleType, scope: list[str]) -> FunctionType:
    found: Any = module
    for name in scope:
        found = vars(found)[name]
    return _unwrapped(found)


def _unwrapped(found: Any) -> FunctionType:
    while not isinstance(found, FunctionType) or hasattr(found, "__wrapped__"):
        if isinstance(found, property):
            found = found.fget
        elif isinstance(found, cached_property):
            found = found.func
        elif isinstance(found, (classmethod, staticmethod)):
            found = found.__func__
        else:
            found = found.__wrapped__
    return found


def _code(module: CodeType, scope: list[str]) -> CodeType:
    code = module
    for name in scope:
        code = next(const for const in code.co_consts if isinstance(const, CodeType) and const.co_name == name)
    return code


def _replace_table(module: ModuleType, tree: ast.Module, line: int) -> None:
    """Databases are made with the other table from then on. Queries go on with the one that they were written with."""
    statement = next(node for node in tree.body if node.lineno <= line <= (node.end_lineno or 0))
    made = MetaData()
    exec(compile(ast.Module([statement], []), str(module.__file__), "exec"), {**vars(module), "metadata": made})
    for table in module.metadata.tables.values():
        if table.name not in made.tables:
            table.to_metadata(made)
    module.metadata = made  # type: ignore[attr-defined]


def _replace_constant(module: ModuleType, tree: ast.Module, line: int) -> None:
    """Evaluate the assignment anew, and put the value wherever the old one is known by name."""
    statement = next(node for node in tree.body if node.lineno <= line <= (node.end_lineno or 0))
    namespace = dict(vars(module))
    exec(compile(ast.Module([statement], []), str(module.__file__), "exec"), namespace)
    for name in _assigned(statement):
        old = vars(module)[name]
        for other in list(sys.modules.values()):
            if not other.__name__.startswith(("airflow_barrier.", "tests.")):
                continue
            for known, value in list(vars(other).items()):
                if value is old:
                    setattr(other, known, namespace[name])
                elif isinstance(value, dict) and not known.startswith("__"):
                    value.update({key: namespace[name] for key, held in value.items() if held is old})


def _assigned(statement: ast.stmt) -> Iterator[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id


def _when_loaded(file: Path, code: CodeType) -> None:
    """For a file that is loaded later, and perhaps many times, as migrations are."""
    loader = importlib.machinery.SourceFileLoader
    original = loader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, name: str) -> CodeType | None:
        return code if Path(self.path) == file else original(self, name)

    loader.get_code = get_code  # type: ignore[method-assign, assignment]
