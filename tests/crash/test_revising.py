"""A revision dies at each point of each of its steps, or its publisher sleeps there: it is gone on with, and whole."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.crash.playing import play
from tests.support.reporting import report


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("purpose", "database", "steps"),
    [
        ("correction", "sqlite", ["begin replay cancel", "publish"]),
        ("correction", "sqlite apart", ["publish"]),
        ("joining", "sqlite", ["begin cancel", "publish"]),
    ],
    ids=["shared", "apart", "joining"],
)
def test_death_and_waking_in_a_revision(folder: str, purpose: str, database: str, steps: list[str]) -> None:
    """``steps``: those of each of the processes that play side by side."""
    orders = [
        (at, json.dumps({"folder": at, "database": database, "purpose": purpose, "steps": some.split()}))
        for lane, some in enumerate(steps)
        for at in [f"{folder}/{lane}"]
    ]
    results = play("tests.crash.revising", orders)
    failures = [f"{result['scenario']}: {result['failure']}" for result in results if result["failure"]]
    assert not failures, f"{len(failures)} of {len(results)} scenarios failed. The first ones:\n" + "\n".join(
        failures[:3]
    )
    modes = Counter((result["step"], result["mode"]) for result in results)
    assert all(modes[step, "death"] >= 2 for step in " ".join(steps).split()), modes
    assert modes["publish", "zombie"] >= 8, modes
    ended = Counter(result["ended"] for result in results if result["mode"] == "zombie")
    said = ", ".join(f"{count} {mode}s in {step}" for (step, mode), count in modes.items())
    report(f"crash of a revision ({purpose}), {database}: {said}; zombies ended so: {dict(ended)}")
