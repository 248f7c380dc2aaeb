"""What `make test` plays of what `make test-all` plays: nothing is lost from the two together."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.drawing import (
    ABOUT,
    ATTACKED_PARTS,
    LISTS,
    PARTS,
    changes_in,
    drawn,
    drawn_folders,
    is_changed,
    left_out,
)

pytest_plugins = ["pytester"]

CHECKOUT = Path(__file__).parents[1]
#: Importing schemathesis for each suite takes seconds.
PLUGINS = ("-p", "tests.support.drawing", "-p", "no:schemathesis")
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


#: A module of a folder of tests that is about a part of the package.
MODULE = """
import pytest

def test_plain(): pass

@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "sqlite apart", "postgresql apart"])
def test_deployed(kind): pass

@pytest.mark.every_deployment
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_everywhere(kind): pass

@pytest.mark.every_landing
def test_always(): pass

@pytest.mark.touches("spark/{number}.py")
def test_about_a_file(): pass

@pytest.mark.drawn("stories")
def test_one(): pass
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
    items, _ = pytester.inline_genitems(file, *PLUGINS)
    for part in range(PARTS):
        assert {"test_misspelt", "test_somewhere[sqlite elsewhere]"} <= played(items, part)
    said = pytester.runpytest_inprocess(*PLUGINS)
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
    items, _ = pytester.inline_genitems(pytester.makepyfile(test_it=SUITE), *PLUGINS)
    return items


@pytest.fixture
def folder(pytester: pytest.Pytester) -> list[pytest.Item]:
    """More modules than landings have parts, in a folder that is about the package's `sinks/`."""
    modules = {f"tests/sinks/test_{number}": MODULE.format(number=number) for number in range(PARTS + 2)}
    pytester.mkdir("tests").joinpath("sinks").mkdir()
    pytester.makepyfile(**modules)
    items, _ = pytester.inline_genitems("tests", *PLUGINS)
    assert len(items) == 10 * len(modules)
    return items


def played(suite: list[pytest.Item], part: int) -> set[str]:
    return {item.name for item in played_items(suite, part)}


def played_items(suite: list[pytest.Item], part: int) -> list[pytest.Item]:
    left = set(left_out(suite, part))
    return [item for item in suite if item not in left]


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
    change(monkeypatch, tmp_path, {"3.py": [[1, 1]], "7.py": [[1, 1], [100, 110], [300, 300]], "other.py": [[1, 9]]})
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


def change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, places: dict[str, list[list[int]]]) -> None:
    """Let the landing change these places."""
    changes = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
    changes.write_text(json.dumps(places))
    monkeypatch.setenv("BARRIER_TEST_CHANGED", str(changes))


def test_a_landing_changes_what_its_commits_edit_move_or_delete(tmp_path: Path) -> None:
    """... and what is not committed yet; of the package, it says which lines, without those of docstrings."""
    package, docs = tmp_path / "airflow_barrier" / "sinks", tmp_path / "docs"
    for folder in (package, docs):
        folder.mkdir(parents=True)
    for name in ("edited.py", "moved.py", "deleted.py", "left_alone.py"):
        (package / name).write_text("".join(f"line = '{name} {number}'\n" for number in range(1, 31)))
    (package / "told.py").write_text('"""Before."""\nline = 1\n')
    (docs / "page.md").write_text("before\n")
    commit(tmp_path, hours_ago=5)
    (package / "edited.py").write_text((package / "edited.py").read_text().replace(" 7'", " seven'"))
    (package / "told.py").write_text('"""What is told\nis no code."""\nline = 1\n')
    (package / "moved.py").rename(package / "new_name.py")
    (package / "deleted.py").unlink()
    commit(tmp_path, hours_ago=0)
    (docs / "page.md").write_text("after\n")
    assert changes_in(tmp_path) == {
        "sinks/edited.py": [(7, 7)],
        "sinks/moved.py": [],
        "sinks/new_name.py": [],
        "sinks/deleted.py": [],
        "/docs/page.md": [],
    }


def commit(checkout: Path, hours_ago: int) -> None:
    at = f"{time.time() - hours_ago * 3600:.0f} +0000"
    as_somebody = {"GIT_AUTHOR_DATE": at, "GIT_COMMITTER_DATE": at, "HOME": str(checkout)}
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.com")
    for words in (["init", "--quiet"], ["add", "--all"], [*who, "commit", "--quiet", "--message", "a change"]):
        subprocess.run(["git", *words], cwd=checkout, env={**os.environ, **as_somebody}, check=True)


def test_landings_of_all_parts_play_a_folder_that_they_do_not_change(
    folder: list[pytest.Item], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    places = ["spark/3.py", "/tests/sinks/test_4.py", "/docs/sinks/port.py", "/tests/sinks_of_others/x.py"]
    change(monkeypatch, tmp_path, {place: [] for place in places})
    assert "tests/sinks" in drawn_folders()
    landings = [played_items(folder, part) for part in range(PARTS)]
    assert set().union(*landings) == set(folder)
    for at_once in landings:
        modules = [item.path.name for item in at_once if item.name == "test_plain"]
        assert "test_4.py" in modules
        assert len(modules) <= 3, "and a tenth of the others"
        deployed = [item for item in at_once if item.path.name == "test_4.py" and "test_deployed" in item.name]
        assert len(deployed) == 1, "as in a folder that plays"
        assert len([item for item in at_once if item.name == "test_always"]) == PARTS + 2
        about = {item.path.name for item in at_once if item.name == "test_about_a_file"}
        assert about == {*modules, "test_3.py"}


def test_a_landing_plays_the_folder_that_is_about_what_it_changes(
    folder: list[pytest.Item], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    of_each = {"test_plain": 1, "test_deployed": 1, "test_everywhere": 2, "test_always": 1, "test_about_a_file": 1}
    for part, place in itertools.product(range(PARTS), ["sinks/port.py", "sinks/a/b.py", "/tests/sinks/conftest.py"]):
        change(monkeypatch, tmp_path, {place: []})
        assert "tests/sinks" not in drawn_folders()
        names = [item.name.partition("[")[0] for item in played_items(folder, part)]
        counts = {name: names.count(name) for name in names if name != "test_one"}
        assert counts == {name: (PARTS + 2) * count for name, count in of_each.items()}
        assert names.count("test_one") < PARTS, "what is drawn by itself is a tenth here, too"


def test_a_test_that_draws_its_cases_does_not_wait_for_its_turn(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its turn would always meet the same part of its cases."""
    monkeypatch.setenv("BARRIER_TEST_PART", "1")
    pytester.mkdir("tests").joinpath("sinks").mkdir()
    test = "from tests.support.drawing import drawn\n\ndef test_it(): drawn(range(9))\n"
    marked = f"import pytest\n{test.replace('def', '@pytest.mark.every_landing' + chr(10) + 'def')}"
    pytester.makepyfile(**{"tests/sinks/test_marked": marked, "tests/sinks/test_unmarked": test})
    result = pytester.runpytest_inprocess(*PLUGINS)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines("*mark tests/sinks/test_unmarked.py::test_it with every_landing*")


def test_the_places_that_folders_are_about_are_there() -> None:
    """Else a place that got another name would be about nothing, and its tests would be drawn when it changes."""
    gone = [
        f"{folder}: {place}"
        for folder, places in ABOUT.items()
        for place in (f"/{folder}", *places)
        if not (CHECKOUT / (place[1:] if place.startswith("/") else f"airflow_barrier/{place}")).exists()
    ]
    assert not gone, "places of ABOUT (tests/support/drawing.py) that are not there; name their new ones"


def test_a_run_says_what_it_plays(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(test_it=SUITE)
    monkeypatch.setenv("BARRIER_TEST_PART", "1")
    whole, landing = (
        pytester.runpytest_inprocess(*PLUGINS, *options).parseoutcomes() for options in ([], ["--landing"])
    )
    assert set(whole) == {"passed"}
    assert set(landing) == {"passed", "deselected"}
    assert sum(landing.values()) == sum(whole.values())
