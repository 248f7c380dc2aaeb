"""Each safety check taken out, one at a time: a test fails. How: docs/decisions/0010-checks-are-taken-out.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.mutation import runner
from tests.mutation.killers import killers, needs_spark
from tests.mutation.marks import PACKAGE, marks
from tests.mutation.operators import labels
from tests.support import rest_catalog, spark
from tests.support.reporting import report

if TYPE_CHECKING:
    from tests.support.spark import SparkServer

#: Seconds for all of them on a machine that is busy otherwise; two quiet cores need about two minutes.
_LONGEST = 1800
#: Servers that killers may need. Mutants that need the same server run one after another: their tests share its tables.
_SPARK, _REST = "spark", "rest"


def _all() -> dict[str, dict[str, Any]]:
    """What the runner is told of each mutant, by a name that says where it is."""
    tests_of = killers()
    return {
        f"{name} ({path}:{line} {label})": {
            "mutant": {"path": path, "line": line, "label": label},
            "killers": tests_of.get(name, []),
            "server": _server_of(tests_of.get(name, [])),
        }
        for path, found in groupby(marks(), key=lambda mark: mark.path)
        for names in [{mark.line: mark.name for mark in found}]
        for line, label in labels((PACKAGE / path).read_text(), names)
        for name in [names[line]]
    }


def _server_of(tests: Sequence[str]) -> str | None:
    if any(needs_spark(test) for test in tests):
        return _SPARK
    return _REST if any(test.startswith("tests/catalogs/") for test in tests) else None


MUTANTS = _all()
_HERE = [name for name, mutant in MUTANTS.items() if mutant["server"] != _SPARK]
_THERE = [name for name, mutant in MUTANTS.items() if mutant["server"] == _SPARK]


def _items(names: Sequence[str]) -> list[Any]:
    mutants = {name: MUTANTS[name]["mutant"] for name in names}
    return [pytest.param(name, marks=pytest.mark.touches("{path}:{line}".format(**mutants[name]))) for name in mutants]


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """How the mutants that this run asks for ended; without a name: how their killers did on the code as it is."""
    asked = _asked(request.session.items, _HERE)
    folder = tmp_path_factory.mktemp("mutants")
    if not any(MUTANTS[name]["server"] == _REST for name in asked):
        return _run(asked, folder, {})
    # one of their own: what a mutant leaves behind is in nobody's way
    with rest_catalog.reference_server(folder) as server:
        return _run(asked, folder, {rest_catalog.SHARED_SERVER: rest_catalog.shared(server)})


@pytest.fixture(scope="module")
def results_on_spark(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, spark_server: SparkServer
) -> list[dict[str, Any]]:
    """The same of those whose killers need the Spark server."""
    asked = _asked(request.session.items, _THERE)
    return _run(asked, tmp_path_factory.mktemp("mutants"), {spark.SHARED_SERVER: spark.shared(spark_server)})


def _asked(items: Sequence[pytest.Item], names: Sequence[str]) -> list[str]:
    asked = {
        item.callspec.params.get("name")
        for item in items
        if isinstance(item, pytest.Function) and item.path == Path(__file__) and hasattr(item, "callspec")
    }
    return [name for name in names if name in asked]


def _run(asked: Sequence[str], folder: Path, servers: dict[str, str]) -> list[dict[str, Any]]:
    killers = {test: MUTANTS[name]["server"] for name in asked for test in MUTANTS[name]["killers"]}
    as_it_is = [
        {"name": None, "mutant": None, "killers": tests, "server": max((killers[test] or "") for test in tests) or None}
        for _, group in groupby(sorted(killers), key=lambda test: test.partition("::")[0])
        for tests in [list(group)]
    ]
    jobs = [*as_it_is, *({"name": name, **MUTANTS[name]} for name in asked)]
    done = subprocess.run(
        [sys.executable, runner.__file__, str(folder)],
        input=json.dumps([{"number": number, **job} for number, job in enumerate(jobs)]),
        capture_output=True,
        text=True,
        env={**os.environ, **servers},
        timeout=_LONGEST,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    killed = [result for result in found if result["name"] is not None and is_killed(result)]
    report(
        f"mutants: {len(killed)} of {len(asked)} killed, {sum(map(hangs, killed))} of them by a test that hung twice, "
        f"of {len({name.split()[0] for name in asked})} safety checks"
    )
    return found


def is_killed(result: dict[str, Any]) -> bool:
    """By a test that failed: neither by one that could not begin, nor by the end of the process."""
    failed = result.get("code") == 1 and result["where"] in ("call", "teardown")
    return failed and (not result["outage"] or hangs(result))


def hangs(result: dict[str, Any]) -> bool:
    """Whether a test hung, and hung again: not for the machine, which would have to be as busy twice."""
    return result["outage"] in runner.HANGS and result.get("again") in runner.HANGS


def test_a_hang_kills_if_it_comes_again() -> None:
    hung = {"code": 1, "where": "call", "outage": runner.HANGS[0]}
    assert not is_killed(hung)
    assert not is_killed({**hung, "again": "another outage"})
    assert is_killed({**hung, "again": runner.HANGS[1]})


@pytest.mark.timeout(_LONGEST)
def test_the_killers_pass_on_the_code_as_it_is(results: list[dict[str, Any]]) -> None:
    check_as_it_is(results)


@pytest.mark.timeout(_LONGEST)
def test_the_killers_on_spark_pass_on_the_code_as_it_is(results_on_spark: list[dict[str, Any]]) -> None:
    check_as_it_is(results_on_spark)


@pytest.mark.timeout(_LONGEST)
@pytest.mark.drawn
@pytest.mark.parametrize("name", _items(_HERE))
def test_a_check_that_is_taken_out_is_missed(results: list[dict[str, Any]], name: str) -> None:
    check_killed(results, name)


@pytest.mark.timeout(_LONGEST)
@pytest.mark.drawn
@pytest.mark.parametrize("name", _items(_THERE))
def test_a_check_on_spark_that_is_taken_out_is_missed(results_on_spark: list[dict[str, Any]], name: str) -> None:
    check_killed(results_on_spark, name)


def check_as_it_is(results: list[dict[str, Any]]) -> None:
    as_it_is = [result for result in results if result["name"] is None]
    failed = [result for result in as_it_is if result.get("code") != 0 or not result["passed"]]
    assert not failed, "\n".join(f"{result['killers']}:\n{result.get('output')}" for result in failed)


def check_killed(results: list[dict[str, Any]], name: str) -> None:
    result = next(result for result in results if result["name"] == name)
    assert is_killed(result), f"no test of {MUTANTS[name]['killers']} fails without it; the run ended so: {result}"
