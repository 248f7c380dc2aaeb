"""Which tests notice that a check is gone, as each says itself: ``@pytest.mark.kills("name-of-the-check", ...)``.

The mark stands at tests beside the behaviour that the check keeps, the quickest that notice. Of a check that is marked
in several places of the package, all its tests together have to notice each place. Tests that run on several databases
run on SQLite here. ``case="..."`` is the id of the one case of a parametrized test that notices; at a class,
``method="test_..."`` names its test that does, which may be inherited.

The marks are read from the source: each process of a run needs the list in the same order, and to collect all tests
takes a minute.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


def killers(root: Path = ROOT) -> dict[str, list[str]]:
    """The tests of each check, by pytest's ids. A mark that stands at no test raises ValueError."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted((root / "tests").rglob("*.py")):
        source = file.read_text()
        if "mark.kills(" not in source:
            continue
        tree, module = ast.parse(source), file.relative_to(root).as_posix()
        at_tests = [(test, mark) for test in _tests(tree) for mark in _marks(test.decorator_list)]
        elsewhere = {mark.lineno for mark in _marks(ast.walk(tree))} - {mark.lineno for _, mark in at_tests}
        if elsewhere or (at_tests and not file.name.startswith("test_")):
            raise ValueError(
                f"{module}: expected @pytest.mark.kills at functions test_* and classes Test* of modules test_*.py, "
                f"found it at lines {sorted(elsewhere) or [mark.lineno for _, mark in at_tests]}; put it at such a test"
            )
        for test, mark in at_tests:
            for check in mark.args:
                found[ast.literal_eval(check)].append(f"{module}::{_id(test, mark)}")
    return dict(found)


@cache
def needs_spark(test: str) -> bool:
    """Whether the test stands in a module that speaks of Spark's session, and so may need the server."""
    return "SparkSession" in (ROOT / test.partition("::")[0]).read_text()


def _tests(tree: ast.Module) -> list[ast.FunctionDef | ast.ClassDef]:
    return [
        node
        for node in tree.body
        if (isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))
        or (isinstance(node, ast.ClassDef) and node.name.startswith("Test"))
    ]


def _marks(nodes: Iterable[ast.AST]) -> list[ast.Call]:
    return [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.kills"]


def _id(test: ast.FunctionDef | ast.ClassDef, mark: ast.Call) -> str:
    match {keyword.arg: ast.literal_eval(keyword.value) for keyword in mark.keywords}:
        case {"case": case}:
            return f"{test.name}[{case}]"
        case {"method": method}:
            return f"{test.name}::{method}"
    return test.name
