"""A safety check cannot be forgotten: it is marked and listed, and there are tests that notice its loss."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.killers import killers
from tests.mutation.marks import Mark, marks, unmarked_raises
from tests.mutation.operators import labels, mutant
from tests.mutation.safety import CHECKS, PROMISES
from tests.support.cases import cases
from tests.support.waiting import patience


def test_every_error_that_says_not_safe_is_marked_where_it_is_raised() -> None:
    assert unmarked_raises() == [], (
        "put `# safety: some-name` on the line where each raise begins, the name with a sentence into "
        'tests/mutation/safety.py, and @pytest.mark.kills("some-name") at the tests that notice its loss'
    )


def test_marks_list_and_killers_speak_of_the_same_checks() -> None:
    marked = {mark.name for mark in marks()}
    assert marked == set(CHECKS), "tests/mutation/safety.py says a sentence for each mark, and for no other"
    assert set(killers()) == set(CHECKS), "@pytest.mark.kills names each check at the tests that notice its loss"


def test_every_case_and_method_that_a_mark_names_is_there() -> None:
    """A misspelt one would fail all mutants that run with it. Of other killers the mark itself stands at the test."""
    named = sorted({test for tests in killers().values() for test in tests if "[" in test or test.count("::") > 1})
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "--collect-only", *named]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(), check=False)
    lost = [line for line in done.stdout.splitlines() + done.stderr.splitlines() if line.startswith("ERROR")]
    assert (done.returncode, lost) == (0, [])


AT_TESTS = """
import pytest

@pytest.mark.kills("a", "b")
@pytest.mark.kills("c", case="one-two")
def test_it(x): pass

@pytest.mark.kills("b", method="test_inherited")
class TestIt(Suite): pass
"""
ELSEWHERE = ("test_it.py", "[pytest.param(1, marks=pytest.mark.kills('a'))]"), ("helper.py", AT_TESTS)


def test_marks_are_read_where_they_stand_at_tests(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_it.py").write_text(AT_TESTS)
    assert killers(tmp_path) == {
        "a": ["tests/test_it.py::test_it"],
        "b": ["tests/test_it.py::test_it", "tests/test_it.py::TestIt::test_inherited"],
        "c": ["tests/test_it.py::test_it[one-two]"],
    }
    with cases() as case:
        for name, source in ELSEWHERE:
            (tests / name).write_text(source)
            with case(name), pytest.raises(ValueError, match=f"^tests/{name}: expected @pytest.mark.kills at"):
                killers(tmp_path)
            (tests / name).unlink()


def test_a_check_has_one_sentence_under_one_promise() -> None:
    assert sum(len(checks) for checks in PROMISES.values()) == len(CHECKS)
    assert [name for name, said in CHECKS.items() if not said.endswith(".") or said.count("\n")] == []


TAKEN_OUT = (
    ("def f(a):\n    if a:\n        raise E(a)", 3, ["def f(a):\n    if a:\n        pass"]),
    ("def f(a):\n    if a:\n        return 1\n    g()", 2, ["def f(a):\n    if False:\n        return 1\n    g()"]),
    ("if a:\n    g()", 1, ["if False:\n    g()", "if True:\n    g()"]),
    ("h()\ng(\n    a\n)", 4, ["h()\npass"]),
    ("x = (\n    a\n    and b\n)", 3, ["x = a"]),
    ("x = (\n    a\n    and (b or c)\n    and d\n)", 3, ["x = a and d"]),
    ("u = (\n    t\n    .where(a, b)\n)", 3, ["u = t.where(a)"]),
    ("u = (\n    t\n    .order_by(a)\n    .limit(1)\n)", 3, ["u = t.limit(1)"]),
    ("u = t.where(\n    a,\n    b == c,\n)", 3, ["u = t.where(a)"]),
    ("f(\n    a,\n    trim=False,\n)", 3, ["f(a, trim=True)"]),
    ("x = all(\n    a(y)\n    for y in z\n)", 2, ["x = all((True for y in z))"]),
    ("x = [\n    y\n    for y in z\n    if y not in w\n]", 4, ["x = [y for y in z]"]),
    ("def f():\n    q = a if b else c", 2, ["def f():\n    q = c"]),
    ("def f() -> bool:\n    return a == b", 2, ["def f() -> bool:\n    return True"]),
    ("A = frozenset({S.A, S.B})", 1, ["A = frozenset({S.B})", "A = frozenset({S.A})"]),
    ("T = {S.A: frozenset()}", 1, ["T = {S.A: frozenset(S)}"]),
)


def test_what_a_check_is_taken_out_by() -> None:
    with cases() as case:
        for source, line, expected in TAKEN_OUT:
            with case(source):
                found = [mutant(source, line, label) for _, label in labels(source, [line])]
                assert [ast.unparse(tree) for tree in found] == expected


def test_a_mark_on_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="does not begin with a check that can be taken out"):
        list(labels("x = 1\ny = x", [2]))


def test_marks_sort_by_place() -> None:
    assert sorted([Mark("b.py", 1, "x"), Mark("a.py", 9, "y")]) == [Mark("a.py", 9, "y"), Mark("b.py", 1, "x")]
