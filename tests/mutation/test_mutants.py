"""Each safety check taken out, one at a time: a test fails. How: docs/decisions/0010-checks-are-taken-out.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.mutation import runner
from tests.mutation.killers import KILLERS, ON_SPARK
from tests.mutation.marks import PACKAGE, marks
from tests.mutation.operators import mutants
from tests.support.reporting import report
from tests.support.spark import SHARED_SERVER, shared

#: Seconds for all of them on a machine that is busy otherwise; two quiet cores need about two minutes.
_LONGEST = 3000


def _all() -> dict[str, dict[str, Any]]:
    """What the runner is told of each mutant, by a name that says where it is."""
    sources = {mark.path: (PACKAGE / mark.path).read_text() for mark in marks()}
    return {
        f"{mark.name} ({mark.path}:{mark.line} {label})": {
            "mutant": {"path": mark.path, "line": mark.line, "label": label},
            "killers": list(KILLERS.get(mark.name, ())),
            "spark": mark.name in ON_SPARK,
        }
        for mark in marks()
        for label, _ in mutants(sources[mark.path], mark.line)
    }


MUTANTS = _all()


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """How the mutants that this run asks for ended; without a name: how their killers did on the code as it is."""
    asked = [item.callspec.params["name"] for item in request.session.items if _is_mutants(item)]
    folder = tmp_path_factory.mktemp("mutants")
    on_spark = any(MUTANTS[name]["spark"] for name in asked)
    killers = {test: MUTANTS[name]["spark"] for name in asked for test in MUTANTS[name]["killers"]}
    as_it_is = [
        {"name": None, "mutant": None, "killers": tests, "spark": any(killers[test] for test in tests)}
        for _, group in groupby(sorted(killers), key=lambda test: test.partition("::")[0])
        for tests in [list(group)]
    ]
    jobs = [*as_it_is, *({"name": name, **MUTANTS[name]} for name in asked)]
    environment = dict(os.environ)
    if on_spark:
        environment[SHARED_SERVER] = shared(request.getfixturevalue("spark_server"))
    done = subprocess.run(
        [sys.executable, runner.__file__, str(folder)],
        input=json.dumps([{"number": number, **job} for number, job in enumerate(jobs)]),
        capture_output=True,
        text=True,
        env=environment,
        timeout=_LONGEST,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    killed = sum(is_killed(result) for result in found if result["name"] is not None)
    report(f"mutants: {killed} of {len(asked)} killed, of {len({name.split()[0] for name in asked})} safety checks")
    return found


def _is_mutants(item: pytest.Item) -> bool:
    return (
        isinstance(item, pytest.Function)
        and item.path == Path(__file__)
        and "name" in getattr(item, "fixturenames", ())
    )


def is_killed(result: dict[str, Any]) -> bool:
    """By a test that failed: neither by one that could not begin, nor by the end of the process."""
    return result.get("code") == 1 and result["where"] in ("call", "teardown") and not result["outage"]


@pytest.mark.timeout(_LONGEST)
def test_the_killers_pass_on_the_code_as_it_is(results: list[dict[str, Any]]) -> None:
    as_it_is = [result for result in results if result["name"] is None]
    assert [result for result in as_it_is if result.get("code") != 0 or not result["passed"]] == []


@pytest.mark.timeout(_LONGEST)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_check_that_is_taken_out_is_missed(results: list[dict[str, Any]], name: str) -> None:
    result = next(result for result in results if result["name"] == name)
    assert is_killed(result), f"no test of {MUTANTS[name]['killers']} fails without it; the run ended so: {result}"
