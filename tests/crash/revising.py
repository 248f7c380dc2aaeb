"""The steps of a revision, each begun in the same deployment: a process dies in it, or sleeps through it and wakes.

A process of its own, like `lane.py`: it reads orders from its standard input, and prints what came of each scenario as
a line of JSON.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.crash import instrument
from tests.crash.instrument import BEFORE, DURING, WATCH, watching
from tests.crash.lane import Orders, rehearse
from tests.crash.points import END
from tests.crash.processes import Child, Tell, fork, run
from tests.crash.revised import (
    COMMITTED,
    DAYS,
    NEXT,
    PURPOSES,
    Deployed,
    Step,
    Version,
    before_last,
    commit,
    go_on,
    publish,
    replay,
)
from tests.crash.revised_answers import ends, looks
from tests.crash.scenarios import CLEAR_ENDS
from tests.crash.shopping import COLUMNS
from tests.support.computing import a_core
from tests.support.drawing import OPERATIONS, drawn

DEATH, ZOMBIE = "death", "zombie"
#: What differs in the name of the same file of another table, barrier or attempt.
_ALIKE = re.compile(rf"{'|'.join(COLUMNS)}|(spec|closed)\.json(\.partial)?|[0-9#*]+| ")
#: Files of a driver, which nobody finds before the table names them; `test_crashes.py` dies at each.
_DRIVERS = (".parquet", ".avro")


@dataclass(frozen=True)
class Scenario:
    """A process of ``step`` dies or is suspended where it is about to do ``operation``, or half-way in it."""

    step: str
    mode: str
    when: str
    operation: str

    def __str__(self) -> str:
        return f"{self.mode} {self.when} {self.operation} of {self.step}"


# --- where ----------------------------------------------------------------------------------------------


def scenarios(deployed: Deployed, step: str) -> list[Scenario]:
    """Of what a transaction does, nothing is there before its COMMIT: one point stands for all of its statements.
    Nobody gets past who sleeps in one: these sleep before it. Of the same file of each table or barrier, the first one
    stands for all.
    """
    deployed.restore(step)

    def work(tell: Tell) -> None:
        seen: list[tuple[str, str, bool]] = []

        def observe(when: str, operation: str) -> None:
            seen.append((when, operation, WATCH.holds_lock))

        with watching(observe, deployed.shop.folder, deployed.shop.name):
            deployed.take(step)
        tell({"seen": seen})

    seen = run(work, f"recording {step}")[-1]["seen"]
    found: list[Scenario] = []
    known = set()
    for when, operation, holds in seen:
        kind = operation.split()[0]
        alike = (when, operation if kind.startswith("sql/") else _ALIKE.sub("", operation))
        if alike in known:
            continue
        known.add(alike)
        begins, ends = kind == "sql/BEGIN", kind == "sql/COMMIT"
        # what is half written has no name yet, or is found by nobody
        changes = kind.startswith("python/") or kind == "file/delete"
        half = when == DURING and not operation.endswith((".part", *_DRIVERS))
        if half or (when == BEFORE and (ends or changes)):
            found.append(Scenario(step, DEATH, when, operation))
        if step == "publish" and when == BEFORE and not holds and (begins or changes):
            found.append(Scenario(step, ZOMBIE, when, operation))
    modes = (DEATH, ZOMBIE) if step == "publish" else (DEATH,)
    return [*found, *(Scenario(step, mode, END, "") for mode in modes)]


def until(deployed: Deployed, scenario: Scenario, reached: Callable[[Tell], None]) -> Child:
    """A process of the step, which does ``reached`` at the point."""

    def work(tell: Tell) -> None:
        def observe(when: str, operation: str) -> None:
            if (when, operation) == (scenario.when, scenario.operation):
                reached(tell)

        with watching(observe, deployed.shop.folder, deployed.shop.name):
            deployed.take(scenario.step)
        if scenario.when == END:
            reached(tell)

    return fork(work)


# --- what happens ---------------------------------------------------------------------------------------


def dies(deployed: Deployed, scenario: Scenario) -> str:
    """The schedule goes on, and then somebody takes the step again, and those that follow it."""
    deployed.restore(scenario.step)
    code, said = until(deployed, scenario, lambda _: os.kill(os.getpid(), signal.SIGKILL)).end()
    assert code == -signal.SIGKILL, f"expected to die there, found exit code {code}: {said}"
    steps = [deployed.steps[scenario.step]]
    if scenario.step == "begin":
        steps += [before_last, replay, publish]
    elif scenario.step == "replay":
        steps += [publish]
    old, new = deployed.purpose.old, deployed.purpose.new
    after = old if scenario.step == "cancel" else new
    deployed.task(
        str(scenario),
        _looks(COMMITTED, old, new),
        go_on,
        _looks(DAYS, old, new),
        *steps,
        _looks(DAYS, after),
        partial(commit, day=NEXT),
        _ends(deployed, NEXT, after),
    )
    return "died"


def sleeps(deployed: Deployed, scenario: Scenario) -> str:
    """Another one publishes, the next barrier is committed, and it wakes. Returns how it ended."""
    deployed.restore(scenario.step)
    old, new = deployed.purpose.old, deployed.purpose.new

    def suspend(tell: Tell) -> None:
        WATCH.observer = None
        tell({"asleep": True})
        os.kill(os.getpid(), signal.SIGSTOP)

    asleep = until(deployed, scenario, suspend)
    try:
        said = asleep.told()
        assert said == {"asleep": True}, f"expected it to fall asleep there, found {said}"
        asleep.stopped()
        deployed.task(
            f"while asleep, {scenario}",
            _looks(COMMITTED, old, new),
            publish,
            _looks(COMMITTED, new),
            partial(commit, day=DAYS),
        )
    except BaseException:
        asleep.kill()
        raise
    asleep.resume()
    code, said_last = asleep.end()
    assert code == 0 or any(base in CLEAR_ENDS for base in said_last[-1]["family"]), said_last[-1]["trace"]
    deployed.task(f"after waking, {scenario}", _ends(deployed, DAYS, new))
    return "success" if code == 0 else str(said_last[-1]["error"]).partition(":")[0]


def _looks(committed: int, *versions: Version) -> Step:
    return partial(looks, committed=committed, versions=versions)


def _ends(deployed: Deployed, last: int, version: Version) -> Step:
    return partial(ends, last=last, purpose=deployed.purpose, version=version)


@contextmanager
def _failures(result: dict[str, Any]) -> Iterator[None]:
    try:
        yield
    except AssertionError:
        result["failure"] = traceback.format_exc()


def main() -> None:
    given = json.loads(sys.stdin.read())
    steps, purpose = given.pop("steps"), given.pop("purpose")
    orders = Orders(**given)
    instrument.install()
    rehearse(orders)
    folder = Path(orders.folder)
    deployed = Deployed(orders.shop(folder / "revised"), folder / "kept", PURPOSES[purpose])
    for step in steps:
        # by mode, so that of each a part is drawn
        played = sorted(scenarios(deployed, step), key=lambda each: each.mode)
        for scenario in drawn(played, step, touches=lambda _: OPERATIONS["revision"]):
            result: dict[str, Any] = {"scenario": str(scenario), "step": step, "mode": scenario.mode, "failure": None}
            with _failures(result), a_core():
                result["ended"] = (dies if scenario.mode == DEATH else sleeps)(deployed, scenario)
            print(json.dumps(result), flush=True)
    deployed.end()


if __name__ == "__main__":
    main()
