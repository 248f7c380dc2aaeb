"""What `make test` plays of what `make test-all` plays: nothing is lost from the two together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.drawing import PARTS, part_of
from tests.support.listing import COLLECTED

pytest_plugins = ["pytester"]

LIST = Path(__file__).with_name("whole.txt")
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

@pytest.mark.drawn("list")
def test_one(): pass

@pytest.mark.drawn("list")
def test_another(): pass

def test_plain(): pass
"""


def test_what_may_be_left_out_is_what_the_list_says(request: pytest.FixtureRequest) -> None:
    """Of the files that were collected: the whole list in a whole run."""
    files, found = request.config.stash[COLLECTED]
    listed = [line for line in LIST.read_text().splitlines() if re.split("::| ", line)[0] in files]
    assert found == listed, f"{LIST.name} says otherwise. If that is meant, what it has to say of these files is:\n" + (
        "\n".join(found)
    )


@pytest.mark.parametrize("length", [0, 1, PARTS, 5 * PARTS + 1])
def test_all_parts_are_the_whole(length: int) -> None:
    parts = [part_of(range(length), part) for part in range(PARTS)]
    assert sorted(case for part in parts for case in part) == list(range(length))


def test_landings_of_all_parts_play_everything(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(test_it=SUITE)
    played: dict[int | None, set[str]] = {}
    for part in (None, *range(PARTS)):
        if part is not None:
            monkeypatch.setenv("BARRIER_TEST_PART", str(part))
        landing = [] if part is None else ["--landing"]
        done = pytester.runpytest_inprocess("-v", "-p", "tests.support.drawing", *landing)
        assert set(done.parseoutcomes()) <= {"passed", "deselected"}
        played[part] = {line.split()[0] for line in done.outlines if "PASSED" in line}
    everything = played.pop(None)
    assert set.union(*played.values()) == everything
    for at_once in played.values():
        assert {"test_it.py::test_plain", "test_it.py::test_everywhere[sqlite]"} <= at_once
        assert len([name for name in at_once if "test_deployed" in name]) == 2
        assert len(at_once & {"test_it.py::test_one", "test_it.py::test_another"}) < 2
