"""A revision dies at each point of each of its steps, or its publisher sleeps there: it is gone on with, and whole."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.crash.playing import play
from tests.support.drawing import is_whole
from tests.support.reporting import report

SHARED, APART = "sqlite", "sqlite apart"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("purpose", "lanes"),
    [
        ("correction", [(SHARED, "begin replay cancel"), (SHARED, "publish")]),
        ("correction", [(APART, "publish")]),
        ("joining", [(SHARED, "begin cancel publish"), (APART, "publish")]),
    ],
    ids=["shared", "apart", "joining"],
)
def test_death_and_waking_in_a_revision(folder: str, purpose: str, lanes: list[tuple[str, str]]) -> None:
    """``lanes``: the database and the steps of each of the processes that play side by side."""
    orders = [
        (at, json.dumps({"folder": at, "database": database, "purpose": purpose, "steps": steps.split()}))
        for lane, (database, steps) in enumerate(lanes)
        for at in [f"{folder}/{lane}"]
    ]
    results = play("tests.crash.revising", orders)
    failures = [f"{result['scenario']}: {result['failure']}" for result in results if result["failure"]]
    assert not failures, f"{len(failures)} of {len(results)} scenarios failed. The first ones:\n" + "\n".join(
        failures[:3]
    )
    modes = Counter((result["step"], result["mode"]) for result in results)
    deaths = [modes[step, "death"] for _, steps in lanes for step in steps.split()]
    assert not is_whole() or (min(deaths) >= 2 and modes["publish", "zombie"] >= 8), modes
    ended = Counter(result["ended"] for result in results if result["mode"] == "zombie")
    said = ", ".join(f"{count} {mode}s in {step}" for (step, mode), count in modes.items())
    databases = " and ".join(sorted({database for database, _ in lanes}))
    report(f"crash of a revision ({purpose}), {databases}: {said}; zombies ended so: {dict(ended)}")
