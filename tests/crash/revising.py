"""The steps of a revision, each begun in the same deployment: a process dies in it, or sleeps through it and wakes.

A process of its own, like `lane.py`: it reads orders from its standard input, and prints what came of each scenario as
a line of JSON. Days 1 to 3 are COMMIT and day 4 is PRECOMMIT, so that who reads committed is ahead of the newest
COMMIT; then day 2 is corrected. Tables name their files by absolute paths: a deployment is put back in place, not
copied.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_barrier.coordinator.deployment import Deployment, with_password
from airflow_barrier.coordinator.swapping import Swapped, cancel_revision
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.names import parse_branch, tag_name
from airflow_barrier.protocol.revisions import Revision, RevisionState
from airflow_barrier.protocol.states import BarrierState
from tests.crash import instrument
from tests.crash.checking import check_files, rows_at
from tests.crash.instrument import BEFORE, DURING, WATCH, watching
from tests.crash.lane import Orders, rehearse
from tests.crash.points import END
from tests.crash.processes import Child, Tell, fork, run
from tests.crash.scenarios import CLEAR_ENDS
from tests.crash.shopping import COLUMNS, Shop, purchases, rows_of
from tests.metaservice.auditing import check_audit
from tests.revising.world import RevisedShop

COMMITTED, DAYS, CORRECTED = 3, 4, 2
OLD = {day: purchases(day, True) for day in range(1, DAYS + 1)}
NEW = {**OLD, CORRECTED: OLD[CORRECTED][:1]}
DEATH, ZOMBIE = "death", "zombie"
#: What differs in the name of the same file of another table, barrier or attempt.
_ALIKE = re.compile(rf"{'|'.join(COLUMNS)}|(spec|closed)\.json(\.partial)?|[0-9#*]+| ")
#: Files of a driver, which nobody finds before the table names them; `test_crashes.py` dies at each.
_DRIVERS = (".parquet", ".avro")

Step = Callable[[RevisedShop], None]


def begin(shop: RevisedShop) -> None:
    if shop.deployment.meta.revisions.under_way(shop.shop.name) is None:
        shop.begin(CORRECTED)


def replay(shop: RevisedShop) -> None:
    """The last part of the last barrier: all that is left to compute."""
    shop.replay(_revision(shop), DAYS, ["price"])


def publish(shop: RevisedShop) -> None:
    assert isinstance(shop.publish(_revision(shop)), Swapped)


def cancel(shop: RevisedShop) -> None:
    cancel_revision(shop.deployment, shop.shop.name, 1, reason="no", actor="person")


def _revision(shop: RevisedShop) -> Revision:
    return shop.deployment.meta.revisions.get(shop.shop.name, 1)


#: In this order, each from where the one before it ends; a cancellation instead of a publish.
STEPS: dict[str, Step] = {"begin": begin, "replay": replay, "publish": publish, "cancel": cancel}


@dataclass(frozen=True)
class Scenario:
    """A process of ``step`` dies or is suspended where it is about to do ``operation``, or half-way in it."""

    step: str
    mode: str
    when: str
    operation: str

    def __str__(self) -> str:
        return f"{self.mode} {self.when} {self.operation} of {self.step}"


class Deployed:
    """A deployment that can be put back to where each step begins."""

    def __init__(self, orders: Orders) -> None:
        self.shop = orders.shop(Path(orders.folder) / "revised")
        self._kept = Path(orders.folder) / "kept"
        run(lambda _: self.shop.create(), "creating tables")
        self.task("the days before", self._days)
        for name, before in (("begin", None), ("replay", self._before_last), ("publish", replay), ("cancel", None)):
            if before is not None:
                self.task(f"before {name}", before)
            shutil.copytree(self.shop.folder, self._kept / name)

    @staticmethod
    def _days(shop: RevisedShop) -> None:
        shop.landed.clear()  # they land as they come
        shop.days(1, COMMITTED)
        shop.day(DAYS, ["open", "load", "amount", "price"])
        shop.correct(CORRECTED, NEW[CORRECTED])

    @staticmethod
    def _before_last(shop: RevisedShop) -> None:
        begin(shop)
        for barrier_id in range(CORRECTED, DAYS):
            shop.replay(_revision(shop), barrier_id)
        shop.replay(_revision(shop), DAYS, ["load", "amount"])

    def restore(self, step: str) -> None:
        shutil.rmtree(self.shop.folder)
        shutil.copytree(self._kept / step, self.shop.folder)

    def task(self, what: str, *steps: Step) -> list[dict[str, Any]]:
        """Steps in a process that nobody disturbs."""
        return run(lambda tell: _connected(self.shop, *steps), what)

    def until(self, scenario: Scenario, reached: Callable[[Tell], None]) -> Child:
        """A process of the step, which does ``reached`` at the point."""

        def work(tell: Tell) -> None:
            def observe(when: str, operation: str) -> None:
                if (when, operation) == (scenario.when, scenario.operation):
                    reached(tell)

            with watching(observe, self.shop.folder, self.shop.name):
                _connected(self.shop, STEPS[scenario.step])
            if scenario.when == END:
                reached(tell)

        return fork(work)


def _connected(shop: Shop, *steps: Step) -> None:
    with closing(Deployment.connect(shop.settings)) as deployment:
        for step in steps:
            step(RevisedShop(shop, deployment, dict(OLD)))


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
            _connected(deployed.shop, STEPS[step])
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


# --- what happens ---------------------------------------------------------------------------------------


def dies(deployed: Deployed, scenario: Scenario) -> str:
    """Then somebody takes the step again, and those that follow it."""
    deployed.restore(scenario.step)
    code, said = deployed.until(scenario, lambda _: os.kill(os.getpid(), signal.SIGKILL)).end()
    assert code == -signal.SIGKILL, f"expected to die there, found exit code {code}: {said}"
    following: list[Step] = [STEPS[scenario.step]]
    if scenario.step == "begin":
        following += [Deployed._before_last, replay, publish]
    elif scenario.step == "replay":
        following += [publish]
    landed = OLD if scenario.step == "cancel" else NEW
    deployed.task(str(scenario), look, *following, looks(landed), commit, ends(landed))
    return "died"


def sleeps(deployed: Deployed, scenario: Scenario) -> str:
    """Another one publishes, the next barrier is committed, and it wakes. Returns how it ended."""
    deployed.restore(scenario.step)

    def suspend(tell: Tell) -> None:
        WATCH.observer = None
        tell({"asleep": True})
        os.kill(os.getpid(), signal.SIGSTOP)

    asleep = deployed.until(scenario, suspend)
    try:
        said = asleep.told()
        assert said == {"asleep": True}, f"expected it to fall asleep there, found {said}"
        asleep.stopped()
        deployed.task(f"while asleep, {scenario}", look, publish, looks(NEW), commit)
    except BaseException:
        asleep.kill()
        raise
    asleep.resume()
    code, said_last = asleep.end()
    assert code == 0 or any(base in CLEAR_ENDS for base in said_last[-1]["family"]), said_last[-1]["trace"]
    deployed.task(f"after waking, {scenario}", ends(NEW))
    return "success" if code == 0 else str(said_last[-1]["error"]).partition(":")[0]


def commit(shop: RevisedShop) -> None:
    shop.shop.run_on(shop.deployment, "commit", DAYS)


# --- what is always true ----------------------------------------------------------------------------------


def expected(day: int, landed: dict[int, list[dict[str, int]]]) -> dict[str, list[Any]]:
    rows = [row for each in range(1, day + 1) for row in landed[each]]
    return {name: sorted(rows_of(name, rows)) for name in COLUMNS}


def look(shop: RevisedShop) -> None:
    """Each answer is old or new, in all of its tables and at both levels."""
    _answers(shop)


def looks(landed: dict[int, list[dict[str, int]]]) -> Step:
    def step(shop: RevisedShop) -> None:
        assert _answers(shop) == [landed]

    return step


def _answers(shop: RevisedShop) -> list[Any]:
    tables = {name: shop.deployment.tables.load(shop.shop.table(name)) for name in COLUMNS}
    cache: dict[str, Any] = {}
    versions: list[Any] = [OLD, NEW]
    for level, barrier_id in ((Level.READ_COMMITTED, DAYS), (Level.REPEATABLE_READ, COMMITTED)):
        answer = shop.deployment.meta.resolve(shop.shop.name, level)
        assert answer.barrier_id == barrier_id, f"{level.value} is at {answer.barrier_id}"
        found = {
            name: rows_at(table, answer.tables[shop.shop.table(name)].snapshot_id, cache)
            for name, table in tables.items()
        }
        versions = [landed for landed in versions if expected(barrier_id, landed) == found]
        assert versions, f"{level.value} at {barrier_id} is torn: {found}"
    return versions


def ends(landed: dict[int, list[dict[str, int]]]) -> Step:
    """All is COMMIT and as if nothing had happened, and nothing is left over."""

    def step(shop: RevisedShop) -> None:
        meta, name = shop.deployment.meta, shop.shop.name
        revised = landed is NEW
        state = meta.revisions.get(name, 1).state
        assert state is (RevisionState.COMMIT if revised else RevisionState.CANCELLED)
        tables = {each: shop.deployment.tables.load(shop.shop.table(each)) for each in COLUMNS}
        cache: dict[str, Any] = {}
        for day in range(1, DAYS + 1):
            barrier = meta.barrier(name, day)
            number = int(revised and day >= CORRECTED)
            assert (barrier.state, barrier.revision) == (BarrierState.COMMIT, number)
            # day 4 was not committed before it was revised
            for revision, rows in {0: OLD, number: landed}.items() if day < DAYS else [(number, landed)]:
                answer = meta.resolve(name, Level.REPEATABLE_READ, at=day, revision=revision)
                for each, table in tables.items():
                    snapshot = answer.tables[shop.shop.table(each)].snapshot_id
                    assert rows_at(table, snapshot, cache) == expected(day, rows)[each], (day, revision, each)
                    tagged = table.metadata.snapshot_by_name(tag_name(name, day, revision))
                    assert tagged is not None, (day, revision, each)
                    assert tagged.snapshot_id == snapshot, (day, revision, each)
        for each, table in tables.items():
            main = table.metadata.current_snapshot()
            assert rows_at(table, main and main.snapshot_id, cache) == expected(DAYS, landed)[each], each
            left = [ref for ref in table.metadata.refs if parse_branch(ref) is not None]
            assert not left, f"{each}: branches {left}"
            check_files(table, cache)
        files = [path.name for path in (shop.shop.lake / "_barrier" / name).glob("b*/[!.]*")]
        assert not files, f"files of committed barriers: {files}"
        settings = shop.shop.settings
        check_audit(with_password(settings.metaservice_url, settings.metaservice_password))

    return step


@contextmanager
def _failures(result: dict[str, Any]) -> Iterator[None]:
    try:
        yield
    except AssertionError:
        result["failure"] = traceback.format_exc()


def main() -> None:
    given = json.loads(sys.stdin.read())
    steps = given.pop("steps")
    orders = Orders(**given)
    instrument.install()
    rehearse(orders)
    deployed = Deployed(orders)
    for step in steps:
        for scenario in scenarios(deployed, step):
            result: dict[str, Any] = {"scenario": str(scenario), "step": step, "mode": scenario.mode, "failure": None}
            with _failures(result):
                result["ended"] = (dies if scenario.mode == DEATH else sleeps)(deployed, scenario)
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
