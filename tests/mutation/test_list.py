"""A safety check cannot be forgotten: it is marked and listed, and there are tests that notice its loss."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.mutation.killers import KILLERS
from tests.mutation.marks import Mark, marks, unmarked_raises
from tests.mutation.operators import labels, mutant
from tests.mutation.safety import CHECKS, PROMISES
from tests.support.cases import cases
from tests.support.waiting import patience


def test_every_error_that_says_not_safe_is_marked_where_it_is_raised() -> None:
    assert unmarked_raises() == [], (
        "put `# safety: some-name` on the line where each raise begins, the name with a sentence into "
        "tests/mutation/safety.py, and the tests that notice its loss into tests/mutation/killers.py"
    )


def test_marks_list_and_killers_speak_of_the_same_checks() -> None:
    marked = {mark.name for mark in marks()}
    assert marked == set(CHECKS), "tests/mutation/safety.py says a sentence for each mark, and for no other"
    assert set(KILLERS) == set(CHECKS), "tests/mutation/killers.py names the tests that notice the loss of each check"
    assert [name for name, tests in KILLERS.items() if not tests] == [], "nothing notices the loss of these"


def test_every_killer_is_there() -> None:
    """Also those of mutants that a landing leaves out: one that is gone fails all that run with it."""
    killers = sorted({test for tests in KILLERS.values() for test in tests})
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "--collect-only", *killers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(), check=False)
    lost = [line for line in done.stdout.splitlines() + done.stderr.splitlines() if line.startswith("ERROR")]
    assert (done.returncode, lost) == (0, [])


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
