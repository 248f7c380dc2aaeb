"""The part of the tests that a landing plays: what its change is about, and a tenth of the rest.

`make test` calls pytest with ``--landing``; without that option, as in `make test-all`, everything is played. Four
things are drawn:

- the modules of a folder of tests that is about other places than the landing changes (:data:`ABOUT`), without those
  of its tests that are marked ``every_landing``, and without what is drawn by itself;
- tests that are marked ``drawn``;
- of a test that runs on several deployments, or on tables of several formats, one, unless it is marked
  ``every_deployment``;
- what a test, or a process that it starts, hands to :func:`drawn`. Such a test is marked ``every_landing``, if its
  folder is drawn: else only that tenth of its cases would ever come up which belongs to the turn of its module.

The commit's hash says which tenth, so that landings of ten parts play everything. What attacks a file of the package
says so (``touches``): of what is drawn, a landing that changes the file plays a third, and all of what attacks a line
near a changed one; of a module it plays all.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TypeVar
from zlib import crc32

import pytest

from tests.support.deployments import APART, SHARED
from tests.support.reporting import report

#: Into how many parts a list is cut. No test runs on more deployments, so that each of them comes up, too.
PARTS = 10
#: Lists of tests of which a landing plays a part, each test of them alone: what `drawn` names.
LISTS = frozenset(
    {
        "Kafka",
        "Pravega",
        "behaviour of sources",
        "corrections",
        "deliveries of many rows",
        "databases",
        "demo",
        "drivers of their own",
        "files in an object store",
        "files on HDFS",
        "histories",
        "histories of sinks",
        "large ones",
        "metastores",
        "stories",
        "stories of Airflow",
        "topics in Spark",
        "unchanged jobs",
        "what the model tells",
    }
)
#: Into how many parts that of a list which attacks a file that the landing changes.
ATTACKED_PARTS = 3
#: The files of the package that an operation is made of, for what attacks operations.
OPERATIONS = {
    "open": (
        *("coordinator/opening.py", "coordinator/starting.py", "coordinator/cuts.py", "coordinator/joining.py"),
        *("metaservice/barriers.py", "metaservice/cuts.py", "metaservice/topologies.py"),
    ),
    "job": ("coordinator/staging.py", "metaservice/attempts.py", "metaservice/restage.py", "tables/_attempts.py"),
    "commit": (
        *("coordinator/committing.py", "coordinator/publishing.py", "coordinator/blocking.py"),
        *("metaservice/commits.py", "metaservice/swapping.py"),
        *("tables/_checks.py", "tables/_commit.py", "tables/_drafts.py", "tables/_sql_swap.py"),
        *("tables/_metastore.py", "tables/_hive_catalog.py", "tables/_glue_catalog.py"),
    ),
    "abort": ("coordinator/aborting.py",),
    "compaction": ("coordinator/compacting.py", "metaservice/maintenance.py", "metaservice/carrying.py"),
    "expiry": ("coordinator/expiring.py", "metaservice/expiring.py", "metaservice/leases.py", "tables/_expiry.py"),
    "revision": (
        *("coordinator/revisions/publish.py", "coordinator/revisions/begin.py", "coordinator/publishing.py"),
        *("metaservice/revisions.py", "metaservice/revision_rows.py"),
    ),
    "changes": (
        *("spark/changes.py", "spark/delta_join.py", "spark/views.py"),
        *("spark/_fields.py", "spark/_rows.py", "spark/_scans.py", "spark/_touched.py", "spark/_weights.py"),
        *("protocol/snapshots.py", "tables/_manifests.py"),
    ),
    "correction": (
        "spark/corrections.py",
        "spark/correcting.py",
        "spark/_reusing.py",
        "coordinator/revisions/replay.py",
    ),
}
#: Folders of tests, or files beside them -> the places that they are about. A landing that changes none of these, and
#: nothing that the folder's modules share, plays those modules that it changes, and a tenth of the others. All other
#: folders play at each landing.
#:
#: A place is a file of the package, or all below a folder (``spark/``); ``/docs/`` is one of the checkout.
ABOUT: Mapping[str, Sequence[str]] = {
    "tests/adopting": (
        *("coordinator/adopting.py", "coordinator/joining.py", "coordinator/leaving.py", "coordinator/starting.py"),
        *("metaservice/starts.py", "protocol/starting.py"),
    ),
    "tests/airflow": (
        *("hooks/", "links/", "notifications/", "operators/", "plugins/", "sensors/", "triggers/", "provider.py"),
        *("/dags/", "/docs/airflow-events.md"),
    ),
    "tests/api": ("api/",),
    "tests/batching": ("coordinator/batching.py", "operators/_batch.py", "spark/batch.py"),
    "tests/benchmarks": ("/benchmarks/",),
    "tests/catalogs": ("tables/",),
    "tests/cli": ("cli/",),
    "tests/cluster": ("spark/",),
    "tests/delivering": (
        *("coordinator/delivering.py", "metaservice/deliveries.py", "operators/_extracts.py", "operators/deliver.py"),
        *("protocol/deliveries.py", "sinks/", "systems/", "spark/delivering.py", "spark/extracting.py"),
    ),
    "tests/demo": ("/dags/", "/demo/"),
    "tests/expiry": (*OPERATIONS["expiry"], "protocol/retention.py"),
    "tests/foreign": ("coordinator/blocking.py", "coordinator/resolving.py", "metaservice/resolving.py", "tables/"),
    "tests/handover": ("operators/",),
    "tests/hostile": ("protocol/names.py", "protocol/secrets.py", "spark/identifiers.py"),
    "tests/postgresql": ("metaservice/", "tables/_sql_swap.py"),
    "tests/reading": ("reading/",),
    "tests/recovery": (
        *("coordinator/journal.py", "coordinator/recovering.py", "coordinator/trimmed_journal.py"),
        "protocol/journal.py",
    ),
    "tests/revising": ("coordinator/revisions/", "operators/revise.py", "protocol/revisions.py"),
    "tests/sinks": ("sinks/", "systems/"),
    "tests/sources": ("sources/", "systems/"),
    "tests/spark": ("spark/", "/guard/"),
    "tests/stories": ("coordinator/",),
    "tests/test_hanging.py": ("/tests/support/",),
    "tests/tutorials": ("cli/", "project/", "/docs/tutorials/"),
    "tests/ui": ("api/", "links/", "plugins/", "/ui/"),
}
#: The second names a file with what the landing changes: place -> first and last lines of the changes in the package.
_PART, _CHANGED = "BARRIER_TEST_PART", "BARRIER_TEST_CHANGED"
#: A line of a file is attacked anew if the landing changes one that is no farther away: those of its function, about.
_NEAR = 20
#: Commits of this time before the newest one are the landing: nobody works on one for longer.
_A_LANDING = timedelta(hours=4)
_PACKAGE = "airflow_barrier/"
_HUNK = re.compile(r"@@ -\S+ \+(?P<first>\d+)(,(?P<length>\d+))? @@")
_FORMATS = ("v2", "v3")
_VARIANTS = frozenset((*SHARED, *APART, *_FORMATS))
_Case = TypeVar("_Case")
#: The test that this process plays.
_playing: pytest.Item | None = None


def drawn(
    cases: Sequence[_Case], name: str = "", touches: Callable[[_Case], Sequence[str]] = lambda _: ()
) -> list[_Case]:
    """The part of the list ``name`` that this run plays, also in its child processes; all, if the run is no landing.

    Lists of other names begin elsewhere, so that short ones do not all come up in the same landings.

    ``touches``: the files of the package that a case attacks, or lines of them (``file:line``).
    """
    if is_whole():
        return list(cases)
    if _playing and folder_of(_playing.nodeid) in ABOUT and not _playing.get_closest_marker("every_landing"):
        raise pytest.UsageError(f"mark {_playing.nodeid} with every_landing: it has drawn() take a part of its cases")
    part = int(os.environ[_PART])
    return [case for number, case in enumerate(cases) if _plays(number, part, name, touches(case))]


def is_whole() -> bool:
    """Whether this run plays everything."""
    return _PART not in os.environ


def _plays(number: int, part: int, name: str, attacked: Sequence[str]) -> bool:
    """Whether a landing that draws ``part`` plays that case of a list, which attacks these files or lines."""
    if _is_turn(number, part, name):
        return True
    lines = [place for place in attacked if ":" in place]
    return is_changed(lines) or (_is_turn(number, part, name, ATTACKED_PARTS) and is_changed(attacked))


def _is_turn(number: int, part: int, name: str, parts: int = PARTS) -> bool:
    """Whether that case of the list ``name``, which is cut into ``parts``, is of the part that a landing draws."""
    return number % parts == (part + crc32(name.encode())) % parts


def is_changed(places: Sequence[str]) -> bool:
    """Whether the landing changes one of these places (see :data:`ABOUT`), or is near one of these ``file:line``."""
    changed = _changes()
    for place in places:
        file, _, line = place.partition(":")
        if line:
            if any(first - _NEAR <= int(line) <= last + _NEAR for first, last in changed.get(file, ())):
                return True
        elif place in changed or (place.endswith("/") and any(each.startswith(place) for each in changed)):
            return True
    return False


def drawn_folders() -> list[str]:
    """Return the folders of tests of which the landing plays a tenth of the modules."""
    shared = [place for place in _changes() if not Path(place).name.startswith("test_")]
    return [
        folder
        for folder, places in ABOUT.items()
        if not is_changed(places) and not any(place.startswith(f"/{folder}/") for place in shared)
    ]


def _changes() -> dict[str, list[tuple[int, int]]]:
    return _read_changes(os.environ[_CHANGED]) if _CHANGED in os.environ else {}


@cache
def _read_changes(file: str) -> dict[str, list[tuple[int, int]]]:
    changes: dict[str, list[tuple[int, int]]] = json.loads(Path(file).read_text())
    return changes


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--landing",
        action="store_true",
        help=f"play what the change is about, and one part of {PARTS} of the rest, drawn by the commit",
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker in (
        "drawn(list): a landing plays a part, drawn by the commit, of the tests of this list (one of LISTS in "
        "tests/support/drawing.py), or of this test's items",
        "touches(*places): files of the package that a drawn test attacks (a landing that changes one plays a third), "
        "or lines of them, as file:line (a landing that changes one near it plays all); or that a module is about",
        "every_deployment: also a landing runs this test on each of its deployments, not on one of them",
        "every_landing: also a landing that changes nothing of what the folder is about plays this test",
    ):
        config.addinivalue_line("markers", marker)
    if not config.getoption("landing") or _PART in os.environ:
        return
    checkout = Path(__file__).parents[2]
    commit = _git(checkout, "rev-parse", "HEAD")
    changed = changes_in(checkout)
    folder = tempfile.TemporaryDirectory(prefix="airflow-barrier-landing-")
    file = Path(folder.name) / "changes.json"
    file.write_text(json.dumps(changed))
    os.environ[_PART], os.environ[_CHANGED] = str(int(commit, 16) % PARTS), str(file)
    config.add_cleanup(folder.cleanup)
    config.add_cleanup(lambda: (os.environ.pop(_PART), os.environ.pop(_CHANGED)))
    report(
        f"landing: part {os.environ[_PART]} of {PARTS}, drawn by commit {commit[:12]}; changed files: {len(changed)}; "
        f"a part of the modules of {', '.join(drawn_folders()) or 'no folder'}"
    )


def changes_in(checkout: Path) -> dict[str, list[tuple[int, int]]]:
    """Return the places that the landing, and what is not committed yet, changes, with the lines of the new files.

    Lines are those of the package's files. A file that went, or got another name, is a place without lines. Docstrings
    do nothing: a file of which no more than that is edited is not changed.
    """
    before = int(_git(checkout, "show", "--no-patch", "--format=%ct", "HEAD")) - int(_A_LANDING.total_seconds())
    base = _git(checkout, "rev-list", "-1", f"--before={before}", "HEAD")
    if not base:  # a clone without history
        return {}
    names = _git(checkout, "diff", "--name-only", "--no-renames", base, "--", ":/").splitlines()
    changes: dict[str, list[tuple[int, int]]] = {_place_of(name): [] for name in names}
    place, said = "", frozenset[int]()
    edited = set(_git(checkout, "diff", "--name-only", "--diff-filter=M", base, "--", f":/{_PACKAGE}*.py").splitlines())
    for line in _git(checkout, "diff", "--unified=0", "--no-prefix", base, "--", f":/{_PACKAGE}").splitlines():
        if line.startswith("+++ "):
            name = line.removeprefix("+++ ")
            place, said = _place_of(name), _docstring_lines(checkout / name)
        elif (hunk := _HUNK.match(line)) and place in changes:
            first, length = int(hunk["first"]), int(hunk["length"] or 1)
            last = first + max(length, 1) - 1
            if not said.issuperset(range(first, last + 1)):
                changes[place].append((first, last))
    unchanged = {_place_of(name) for name in edited if not changes[_place_of(name)]}
    return {place: lines for place, lines in changes.items() if place not in unchanged}


def _docstring_lines(file: Path) -> frozenset[int]:
    if file.suffix != ".py" or not file.exists():
        return frozenset()
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, kinds)]
    said = [node.body[0] for node in nodes if ast.get_docstring(node, clean=False) is not None]
    return frozenset(line for each in said for line in range(each.lineno, (each.end_lineno or 0) + 1))


def _place_of(name: str) -> str:
    """Return the place of a file of the checkout."""
    return name.removeprefix(_PACKAGE) if name.startswith(_PACKAGE) else f"/{name}"


def _git(checkout: Path, *arguments: str) -> str:
    asked = ["git", *arguments]
    return subprocess.run(asked, cwd=checkout, capture_output=True, text=True, check=True).stdout.strip()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    global _playing
    _playing = item


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("landing"):
        return
    left = set(left_out(items, int(os.environ[_PART])))
    if left:
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=list(left))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    if why := _refused(item):
        pytest.fail(why, pytrace=False)


def _refused(item: pytest.Item) -> str | None:
    """Why this item is not drawn as its author may think: its list, or its deployment, is none that is known."""
    function = item.nodeid.partition("[")[0]
    if marker := item.get_closest_marker("drawn"):
        if LISTS.issuperset(marker.args):
            return None
        return (
            f"{function}: expected drawn() or the name of one list, found {', '.join(map(repr, marker.args))}; correct "
            "the name, or add it to LISTS in tests/support/drawing.py"
        )
    odd = [word for word in _words(item) if word not in _VARIANTS and not _VARIANTS.isdisjoint(word.split())]
    if not odd:
        return None
    return (
        f"{function}: expected a deployment of tests/support/deployments.py in its id, found {odd[0]!r}, of which a "
        "landing would play everything; add it there, mark the test drawn, or call its parameter something else"
    )


def left_out(items: Sequence[pytest.Item], part: int) -> Iterator[pytest.Item]:
    """What a landing that plays ``part`` does not play of ``items``."""
    lists: dict[str, list[pytest.Item]] = defaultdict(list)
    choices: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if _refused(item):  # it plays, and says why
            continue
        function, _, parameters = item.nodeid.partition("[")
        if marker := item.get_closest_marker("drawn"):
            lists[marker.args[0] if marker.args else function].append(item)
        elif (variant := variant_of(item)) and not item.get_closest_marker("every_deployment"):
            others = [word for word in parameters.rstrip("]").split("-") if word not in variant]
            choices[f"{function}[{'-'.join(others)}]"].append(item)
        else:
            choices[item.nodeid].append(item)
    for name, each in lists.items():
        yield from (item for number, item in enumerate(each) if not _plays(number, part, name, _attacked_by(item)))
    folders, modules = drawn_folders(), _modules_of(items)
    for name, each in choices.items():
        folder, module = folder_of(name), name.partition("::")[0]
        is_due = each[0].get_closest_marker("every_landing") or is_changed([f"/{module}", *_attacked_by(each[0])])
        if folder not in folders or is_due:
            chosen = each[(crc32(name.encode()) + part) % len(each)]
            yield from (item for item in each if item is not chosen)
        else:
            # The second variant has its turn a landing after the first one, so that each of them has one.
            numbered = enumerate(each, modules[folder].index(module))
            yield from (item for number, item in numbered if not _is_turn(number, part, folder))


def folder_of(nodeid: str) -> str:
    """Return the folder of tests, or the file beside the folders, that a test is in."""
    return "/".join(nodeid.partition("::")[0].split("/")[:2])


def _modules_of(items: Sequence[pytest.Item]) -> dict[str, list[str]]:
    modules: dict[str, list[str]] = defaultdict(list)
    for module in sorted({item.nodeid.partition("::")[0] for item in items}):
        modules[folder_of(module)].append(module)
    return modules


def _attacked_by(item: pytest.Item) -> list[str]:
    return [file for marker in item.iter_markers("touches") for file in marker.args]


def variant_of(item: pytest.Item) -> tuple[str, ...]:
    """Which way to deploy MetaService and catalog, and which format of tables, the item runs on, as its id says."""
    return tuple(word for word in _words(item) if word in _VARIANTS)


def _words(item: pytest.Item) -> list[str]:
    return item.callspec.id.split("-") if hasattr(item, "callspec") else []
