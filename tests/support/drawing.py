"""What a landing plays of what it does not need whole each time: a part, drawn by the commit's hash.

So all of it comes up within some landings. `make test` calls pytest with ``--landing``; without that option, as in
`make test-all`, everything is played. Three things are drawn: tests that are marked ``drawn``; of a test that runs on
several deployments, the one it runs on, unless it is marked ``every_deployment``; and what a test, or a process that it
starts, hands to :func:`drawn`.
"""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar
from zlib import crc32

import pytest

from tests.support.deployments import APART, SHARED
from tests.support.reporting import report

#: Into how many parts a list is cut. No test runs on more deployments, so that each of them comes up, too.
PARTS = 4
_PART = "BARRIER_TEST_PART"
_Case = TypeVar("_Case")


def drawn(cases: Sequence[_Case]) -> list[_Case]:
    """The part that this run plays, also in its child processes; all, if the run is no landing."""
    return list(cases) if is_whole() else part_of(cases, int(os.environ[_PART]))


def is_whole() -> bool:
    """Whether this run plays everything."""
    return _PART not in os.environ


def part_of(cases: Sequence[_Case], part: int) -> list[_Case]:
    return list(cases[part::PARTS])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--landing", action="store_true", help=f"of what is drawn, play the part of {PARTS} that the commit names"
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker in (
        "drawn(list): a landing plays a part, drawn by the commit, of the tests of this list, or of this test's items",
        "every_deployment: also a landing runs this test on each of its deployments, not on one of them",
    ):
        config.addinivalue_line("markers", marker)
    if not config.getoption("landing") or _PART in os.environ:
        return
    asked = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(asked, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()
    os.environ[_PART] = str(int(commit, 16) % PARTS)
    config.add_cleanup(lambda: os.environ.pop(_PART))
    report(f"landing: part {os.environ[_PART]} of {PARTS}, drawn by commit {commit[:12]}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("landing"):
        return
    left = set(left_out(items, int(os.environ[_PART])))
    if left:
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=list(left))


def left_out(items: Sequence[pytest.Item], part: int) -> Iterator[pytest.Item]:
    """What a landing that plays ``part`` does not play of ``items``."""
    lists: dict[str, list[pytest.Item]] = defaultdict(list)
    choices: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        function, _, parameters = item.nodeid.partition("[")
        if marker := item.get_closest_marker("drawn"):
            lists[marker.args[0] if marker.args else function].append(item)
        elif (kind := deployment_of(item)) and not item.get_closest_marker("every_deployment"):
            choices[f"{function}[{parameters.replace(kind, '*', 1)}"].append(item)
    for each in lists.values():
        played = part_of(each, part)
        yield from (item for item in each if item not in played)
    for name, each in choices.items():
        played = each[(crc32(name.encode()) + part) % len(each)]
        yield from (item for item in each if item is not played)


def deployment_of(item: pytest.Item) -> str | None:
    """Which of the ways to deploy MetaService and catalog the item runs on."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return next((each for each in parameters if isinstance(each, str) and each in (*SHARED, *APART)), None)
