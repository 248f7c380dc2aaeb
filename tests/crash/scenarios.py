"""One barrier in which a process dies, or is suspended and wakes when all is over."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from tests.crash.checking import check_committed
from tests.crash.instrument import BEFORE, LOCKS, WATCH, watching
from tests.crash.points import END, FIRST, UNCHANGED, Point
from tests.crash.processes import Child, Standing, Tell, fork
from tests.crash.shopping import TASKS, Shop

#: What follows a death: Airflow runs the killed task again, or somebody starts the whole run once more.
RETRY, RERUN = "retry", "rerun"
#: What follows a suspension: the zombie wakes after the commit, or in the middle of the next barrier.
ZOMBIE, LATE_ZOMBIE = "zombie", "late zombie"
#: How a process that was superseded may end: by an error that says so.
CLEAR_ENDS = (
    "airflow_barrier.protocol.errors.BarrierError",
    # the driver's own writes, on a branch that is no longer there
    "pyiceberg.exceptions.CommitFailedException",
)


@dataclass(frozen=True)
class Scenario:
    """What happens at which point."""

    point: Point
    mode: str

    def __str__(self) -> str:
        return f"{self.mode} {self.point}"

    @property
    def late(self) -> bool:
        return self.mode == LATE_ZOMBIE

    @property
    def settles(self) -> bool:
        """Whether a quiet day goes before: a zombie's late commits change how much metadata the next one deletes."""
        zombie = self.mode in (ZOMBIE, LATE_ZOMBIE)
        return zombie and self.point.kind != FIRST and self.point.operation.startswith("file/delete")

    @property
    def priced(self) -> tuple[bool, ...]:
        """The days that it takes, and whether purchases have prices on them."""
        return (True,) * self.settles + (self.point.kind != UNCHANGED,) + (True,) * self.late


def tasks_of(standing: Standing, shop: Shop, day: int, tasks: Sequence[str], what: str) -> None:
    """Tasks that nobody disturbs."""
    if tasks:
        standing.run(partial(_undisturbed, shop, day, tasks), f"{what}: {', '.join(tasks)} of day {day}")


@cache
def _connected(settings: Settings) -> Deployment:
    """The standing process's own connection, for tasks that nobody disturbs."""
    return Deployment.connect(settings)


def _undisturbed(shop: Shop, day: int, tasks: Sequence[str], _: Tell) -> None:
    for task in tasks:
        shop.run_on(_connected(shop.settings), task, day)


def crash(standing: Standing, shop: Shop, day: int, scenario: Scenario, glance: Callable[[], None]) -> None:
    """A process is killed at the point; a reader may look; then the tasks run as Airflow runs them."""
    point = scenario.point
    before, after = _around(point.task)
    tasks_of(standing, shop, day, before, f"before {scenario}")

    def reached() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    code, said = _until(shop, day, point, lambda _: reached()).end()
    assert code == -signal.SIGKILL, f"{scenario}: expected to die there, found exit code {code}: {said}"
    glance()
    again = TASKS if scenario.mode == RERUN else (point.task, *after)
    standing.run(partial(_again, shop, day, again), str(scenario))


def _again(shop: Shop, day: int, tasks: Sequence[str], _: Tell) -> None:
    """As another process would do it, which connects anew."""
    with closing(Deployment.connect(shop.settings)) as deployment:
        for task in tasks:
            shop.run_on(deployment, task, day)
        check_committed(deployment, shop, day)


def zombie(standing: Standing, shop: Shop, day: int, scenario: Scenario, glance: Callable[[], None]) -> str:
    """A process is suspended at the point, a reader may look, another one does the work, and it wakes: how it ended."""
    tasks_of(standing, shop, day, _around(scenario.point.task)[0], f"before {scenario}")
    asleep = _until(shop, day, scenario.point, _suspend)
    try:
        _go_on_without(asleep, standing, shop, day, scenario, glance)
        if scenario.late:
            tasks_of(standing, shop, day + 1, ("open", "load", "amount"), f"while asleep, {scenario}")
    except BaseException:
        asleep.kill()
        raise
    asleep.resume()
    ended = _ending(scenario, *asleep.end())
    if scenario.late:
        tasks_of(standing, shop, day + 1, ("price", "commit"), f"after waking, {scenario}")
    standing.run(partial(_check, shop, day, scenario.late), f"after {scenario}, which ended with {ended}")
    return ended


def _check(shop: Shop, day: int, late: bool, _: Tell) -> None:
    with closing(Deployment.connect(shop.settings)) as deployment:
        check_committed(deployment, shop, day, newest=not late, branches=True)
        if late:
            check_committed(deployment, shop, day + 1, branches=True)


def _go_on_without(
    asleep: Child, standing: Standing, shop: Shop, day: int, scenario: Scenario, glance: Callable[[], None]
) -> None:
    """Another process does the task of the one that falls asleep, and all that follow."""
    task = scenario.point.task
    holds = _asleep(asleep, scenario)
    glance()
    standing.ask(partial(_retry, shop, day, task, holds))
    if holds:
        # it holds a lock of the database: the other one gets as far as waiting for it, or needs no lock at all
        standing.heard()
        asleep.resume()
        assert not _asleep(asleep, scenario), f"{scenario}: expected it to let go of its locks"
    standing.done(f"{scenario}, the other process")


def _retry(shop: Shop, day: int, task: str, holds: bool, tell: Tell) -> None:
    """As another process would do it, which connects anew; where a lock is held, it tells that it comes to one."""

    def waits(when: str, operation: str) -> None:
        if when == BEFORE and operation.startswith(LOCKS):
            WATCH.observer = None
            tell({"waits": operation})

    with closing(Deployment.connect(shop.settings)) as deployment:
        if holds:
            with watching(waits, shop.folder, shop.name):
                shop.run_on(deployment, task, day)
        else:
            shop.run_on(deployment, task, day)
        for following in _around(task)[1]:
            shop.run_on(deployment, following, day)


def _asleep(child: Child, scenario: Scenario) -> bool:
    """Wait until it has suspended itself; whether it holds locks."""
    said = child.told()
    assert said is not None, f"{scenario}: the point was not reached"
    assert "holds" in said, f"{scenario}: {said.get('trace', said)}"
    child.stopped()
    return bool(said["holds"])


def _suspend(tell: Tell) -> None:
    """Suspend this process; if it is inside a transaction that writes, once more when that has ended."""
    holds = WATCH.holds_lock

    def released(when: str, operation: str) -> None:
        if not WATCH.holds_lock:
            _suspend(tell)

    WATCH.observer = released if holds else None
    tell({"holds": holds})
    os.kill(os.getpid(), signal.SIGSTOP)


def _until(shop: Shop, day: int, point: Point, reached: Any) -> Child:
    """Run the point's task in a child, which does ``reached`` at the point."""

    def work(tell: Tell) -> None:
        def observe(when: str, operation: str) -> None:
            if (when, operation) == (point.when, point.operation):
                reached(tell)

        with watching(observe, shop.folder, shop.name):
            shop.run(point.task, day)
        if point.when == END:
            reached(tell)

    return fork(work)


def _ending(scenario: Scenario, code: int, said: Sequence[dict[str, Any]]) -> str:
    """A zombie may succeed, or fail saying why."""
    if code == 0:
        return "success"
    assert said, f"{scenario}: the zombie ended with {code} and said nothing"
    error = said[-1]
    assert any(base in CLEAR_ENDS for base in error["family"]), f"{scenario}: {error['trace']}"
    return str(error["error"]).partition(":")[0]


def _around(task: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    at = TASKS.index(task)
    return TASKS[:at], TASKS[at + 1 :]
