"""What `make test` plays of what `make test-all` plays: nothing is lost from the two together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.drawing import ATTACKED_PARTS, LISTS, PARTS, drawn, is_changed, left_out

pytest_plugins = ["pytester"]

#: A suite with everything that may be drawn.
SUITE = """
import pytest

@pytest.mark.drawn
@pytest.mark.parametrize("case", range(9))
def test_long(case): pass

@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "sqlite apart", "postgresql apart"])
@pytest.mark.parametrize("case", "ab")
def test_deployed(case, kind): pass

@pytest.mark.every_deployment
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_everywhere(kind): pass

@pytest.mark.drawn
@pytest.mark.parametrize("case", [pytest.param(n, marks=pytest.mark.touches(f"{n}.py:1")) for n in range(9)])
def test_attacking_a_line(case): pass

@pytest.mark.drawn("stories")
def test_one(): pass

@pytest.mark.drawn("stories")
def test_another(): pass

def test_plain(): pass
"""


NOT_DRAWN = """
import pytest

@pytest.mark.drawn("Kavka")
def test_misspelt(): pass

@pytest.mark.parametrize("kind", ["sqlite", "sqlite elsewhere"])
def test_somewhere(kind): pass
"""


def test_what_nobody_draws_fails_at_each_landing(pytester: pytest.Pytester) -> None:
    file = pytester.makepyfile(test_it=NOT_DRAWN)
    items, _ = pytester.inline_genitems(file, "-p", "tests.support.drawing")
    for part in range(PARTS):
        assert {"test_misspelt", "test_somewhere[sqlite elsewhere]"} <= played(items, part)
    said = pytester.runpytest_inprocess("-p", "tests.support.drawing")
    said.assert_outcomes(failed=2, passed=1)
    said.stdout.fnmatch_lines(
        [
            "*test_it.py::test_misspelt: expected drawn() or the name of one list, found 'Kavka'; *",
            "*test_it.py::test_somewhere: expected a deployment of *, found 'sqlite elsewhere', *",
        ]
    )


def test_each_list_has_tests() -> None:
    others = (file for file in Path(__file__).parent.rglob("test_*.py") if file != Path(__file__))
    sources = "".join(file.read_text() for file in others)
    assert [name for name in LISTS if f'drawn("{name}")' not in sources] == []


@pytest.mark.parametrize("length", [0, 1, PARTS, 5 * PARTS + 1])
def test_all_parts_are_the_whole(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    assert sorted(case for part in range(PARTS) for case in drawn_of(monkeypatch, part, range(length))) == [
        *range(length)
    ]


def drawn_of(monkeypatch: pytest.MonkeyPatch, part: int, cases: range, *places: str) -> list[int]:
    monkeypatch.setenv("BARRIER_TEST_PART", str(part))
    return drawn(cases, touches=lambda _: places)


@pytest.fixture
def suite(pytester: pytest.Pytester) -> list[pytest.Item]:
    items, _ = pytester.inline_genitems(pytester.makepyfile(test_it=SUITE), "-p", "tests.support.drawing")
    return items


def played(suite: list[pytest.Item], part: int) -> set[str]:
    left = list(left_out(suite, part))
    return {item.name for item in suite if item not in left}


def test_landings_of_all_parts_play_everything(suite: list[pytest.Item]) -> None:
    landings = [played(suite, part) for part in range(PARTS)]
    assert set.union(*landings) == {item.name for item in suite}
    for at_once in landings:
        assert {"test_plain", "test_everywhere[sqlite]", "test_everywhere[postgresql]"} <= at_once
        assert len([name for name in at_once if name.startswith("test_deployed")]) == 2
        assert len(at_once & {"test_one", "test_another"}) < 2


def test_a_landing_plays_what_attacks_a_file_that_it_changes(
    suite: list[pytest.Item], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    changes = tmp_path / "changes.json"
    changes.write_text(json.dumps({"3.py": [[1, 1]], "7.py": [[1, 1], [100, 110], [300, 300]], "other.py": [[1, 9]]}))
    monkeypatch.setenv("BARRIER_TEST_CHANGED", str(changes))
    assert [line for line in range(0, 400, 10) if is_changed([f"7.py:{line}"])] == [
        *(0, 10, 20),
        *range(80, 131, 10),
        *range(280, 321, 10),
    ]
    cases = range(10 * PARTS * ATTACKED_PARTS)
    for part in range(PARTS):
        near = {name for name in played(suite, part) if name.startswith("test_attacking_a_line")}
        assert {"test_attacking_a_line[3]", "test_attacking_a_line[7]"} <= near
        assert len(near) <= 3
        assert drawn_of(monkeypatch, part, cases, "7.py:90") == [*cases]
        third = drawn_of(monkeypatch, part, cases, "7.py")
        assert len(third) == len(cases) * 2 // 5, "a third, and a tenth of the others"
        assert set(drawn_of(monkeypatch, part, cases)) < set(third)
        assert drawn_of(monkeypatch, part, cases, "8.py", "7.py:200") == drawn_of(monkeypatch, part, cases)


def test_a_run_says_what_it_plays(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(test_it=SUITE)
    monkeypatch.setenv("BARRIER_TEST_PART", "1")
    whole, landing = (
        pytester.runpytest_inprocess("-p", "tests.support.drawing", *options).parseoutcomes()
        for options in ([], ["--landing"])
    )
    assert set(whole) == {"passed"}
    assert set(landing) == {"passed", "deselected"}
    assert sum(landing.values()) == sum(whole.values())
