"""A deployment with a revision: what it is for, the steps of it, and the deployment put back to where each begins.

Days 1 to 3 are COMMIT and day 4 is PRECOMMIT, so that who reads committed is ahead of the newest COMMIT, when a person
begins it at day 2. Tables name their files by absolute paths: a deployment is put back in place, not copied.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.revisions.publish import NotStaged, Swapped, cancel_revision
from airflow_barrier.protocol.revisions import Revision
from tests.crash.processes import Standing, Tell, run
from tests.crash.shopping import COLUMNS, Row, Shop, purchases, rows_of
from tests.revising.growing import DAY, GrowingShop, declare
from tests.revising.world import JOBS, RevisedShop

COMMITTED, DAYS, FIRST = 3, 4, 2
#: The day that comes while the revision is under way, or after it.
NEXT = DAYS + 1

Step = Callable[[RevisedShop], None]


@dataclass(frozen=True)
class Version:
    """What people may see: the tables that are there, made of what has landed on each day."""

    landed: Mapping[int, Sequence[dict[str, int]]]
    tables: tuple[str, ...] = tuple(COLUMNS)

    def at(self, day: int) -> dict[str, list[Row]]:
        rows = [row for each in range(1, day + 1) for row in self.landed[each]]
        return {name: sorted(rows_of(name, rows)) for name in self.tables}


_LANDED = {day: purchases(day, True) for day in range(1, NEXT + 1)}


class Correction:
    """Of what landed on a day."""

    old = Version(_LANDED)
    new = Version({**_LANDED, FIRST: _LANDED[FIRST][:1]})
    changed: tuple[str, ...] = ()

    def shop(self, shop: Shop) -> Shop:
        return shop

    def days(self, shop: RevisedShop) -> None:
        shop.days(1, COMMITTED)
        staged(shop, DAYS)
        shop.correct(FIRST, list(self.new.landed[FIRST]))


class Joining:
    """Of a job that the DAG has got after three days, with its history."""

    old = Version(_LANDED, tuple(name for name in COLUMNS if name != "prices"))
    new = Version(_LANDED)
    changed = ("price",)

    def shop(self, shop: Shop) -> Shop:
        growing = GrowingShop(shop.folder, shop.settings, shop.name)
        growing.declare(*JOBS)
        return growing

    def days(self, shop: RevisedShop) -> None:
        assert isinstance(shop.shop, GrowingShop)
        shop.shop.declare("load", "amount")
        for day in range(1, COMMITTED + 1):
            shop.day(day, DAY)
        declare(shop)
        staged(shop, DAYS)


Purpose = Correction | Joining
PURPOSES: dict[str, Purpose] = {"correction": Correction(), "joining": Joining()}


# --- the steps ------------------------------------------------------------------------------------------


def begin(shop: RevisedShop, changed: Sequence[str]) -> None:
    if shop.deployment.meta.revisions.under_way(shop.shop.name) is None:
        shop.begin(FIRST, changed=changed)


def replay(shop: RevisedShop) -> None:
    """The last part of the last barrier: all that is left to compute."""
    shop.replay(revision_of(shop), DAYS, ["price"])


def publish(shop: RevisedShop) -> None:
    """What was opened since it was computed comes first."""
    revision = revision_of(shop)
    published = shop.publish(revision)
    if isinstance(published, NotStaged):
        shop.replay_all(revision)
        published = shop.publish(revision)
    assert isinstance(published, Swapped), published


def cancel(shop: RevisedShop) -> None:
    cancel_revision(shop.deployment, shop.shop.name, 1, reason="no", actor="person")


def staged(shop: RevisedShop, day: int) -> None:
    """The run of a day up to its commit, with the jobs that are members."""
    shop.day(day, ["open"])
    members = {job.name for job in shop.deployment.meta.topologies.get(shop.shop.name).jobs}
    shop.day(day, [job for job in JOBS if job in members])


def before_last(shop: RevisedShop) -> None:
    """All of its work but that last part."""
    for barrier_id in range(FIRST, DAYS):
        shop.replay(revision_of(shop), barrier_id)
    shop.replay(revision_of(shop), DAYS, ["load", "amount"])


def commit(shop: RevisedShop, day: int) -> None:
    shop.shop.run_on(shop.deployment, "commit", day)


def go_on(shop: RevisedShop) -> None:
    """The schedule does: a barrier is committed, and the next one is PRECOMMIT."""
    commit(shop, DAYS)
    staged(shop, NEXT)


def revision_of(shop: RevisedShop) -> Revision:
    return shop.deployment.meta.revisions.get(shop.shop.name, 1)


class Deployed:
    """A deployment that can be put back to where each of the ``steps`` begins.

    These follow each other, each from where the one before it ends; a cancellation instead of a publish.
    """

    def __init__(self, shop: Shop, kept: Path, purpose: Purpose) -> None:
        self.purpose = purpose
        self.shop = purpose.shop(shop)
        self._kept = kept
        self._standing = Standing()
        begins = partial(begin, changed=purpose.changed)
        self.steps: dict[str, Step] = {"begin": begins, "replay": replay, "publish": publish, "cancel": cancel}
        run(lambda _: self.shop.create(), "creating tables")
        self.task("the days before", purpose.days)
        for name, before in (("begin", ()), ("replay", (begins, before_last)), ("publish", (replay,))):
            self.task(f"before {name}", *before)
            shutil.copytree(self.shop.folder, self._kept / name)

    def restore(self, step: str) -> None:
        shutil.rmtree(self.shop.folder)
        shutil.copytree(self._kept / ("publish" if step == "cancel" else step), self.shop.folder)

    def task(self, what: str, *steps: Step) -> None:
        """Steps that nobody disturbs."""
        self._standing.run(partial(_connected, self.shop, steps), what)

    def take(self, step: str) -> None:
        """As a process takes a step, which connects anew."""
        _connected(self.shop, [self.steps[step]])

    def end(self) -> None:
        self._standing.end()


def _connected(shop: Shop, steps: Sequence[Step], _: Tell | None = None) -> None:
    with closing(Deployment.connect(shop.settings)) as deployment:
        for step in steps:
            step(RevisedShop(shop, deployment, {}))
