"""One world that two features meet in: the shopping topology on real tables, and what its readers must get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from airflow_barrier.coordinator.compacting import Compactor, compact
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.joining import takes_part
from airflow_barrier.coordinator.leaving import leave
from airflow_barrier.protocol.errors import ExpiredBarrierError, UnknownBarrierError, UnknownRevisionError
from airflow_barrier.protocol.levels import Level, Resolution
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import Revision, RevisionState
from airflow_barrier.protocol.states import BarrierState
from tests.crash.shopping import Shop
from tests.recovery.backups import Backups
from tests.revising.world import JOBS, RevisedShop
from tests.stories.kinds import ByEventTime
from tests.support.replacing import replace_files
from tests.support.runs import run_of

Rows = dict[str, Counter[Any]]
UPKEEP = Compactor(run_of("upkeep/tonight"), "upkeep/tonight", "g0", "story")


@dataclass(frozen=True)
class World:
    """``number`` tells worlds apart; ``priced``: every day has prices, or every other one; ``away``: job `price` was
    out of the topology on the second day; ``beside``: there is a second topology in the same deployment, whose
    ``tag_policy`` it is.
    """

    number: int
    kind: type[Shop]
    priced: bool
    away: bool
    beside: bool
    tag_policy: str


@dataclass
class Story:
    """What has happened so far; ``beside`` is the second topology, or None."""

    world: World
    shop: RevisedShop
    backups: Backups
    beside: RevisedShop | None
    today: int = 0
    #: what readers get of each day: what landed, before a correction that is not published yet
    stands: dict[int, list[dict[str, int]]] = field(default_factory=dict)
    revision: Revision | None = None
    #: answers that are held by a lease, and what was read there
    held: list[tuple[Resolution, Rows]] = field(default_factory=list)
    #: the MetaService was lost, and with it everything that was in flight
    lost: bool = False

    # --- days -------------------------------------------------------------------------------------

    def next_day(self) -> int:
        """A new run starts, after those that were aborted have started again."""
        self.today += 1
        self.open_all()
        return self.today

    def open_all(self) -> None:
        for day in range(1, self.today + 1):
            self.open(day)

    def open(self, day: int) -> None:
        """The start task of a run, maybe again."""
        self.shop.day(day, [], priced=self.world.priced or day % 2 == 1)
        shop, landed = self.shop.shop, self.shop.landed
        if shop._open(self.shop.deployment, day).created:
            if isinstance(shop, ByEventTime):
                landed[day] = shop.due(day, [row for each in range(1, day) for row in landed[each]])
            self.stands[day] = landed[day]

    def work(self, day: int, jobs: Sequence[str] = JOBS, generation: str = "1/1") -> None:
        """These jobs of a day, after all of them at the barriers before it."""
        until = self.barrier_of(day).barrier_id
        for barrier in self.in_flight():
            if barrier.barrier_id > until or barrier.state is not BarrierState.OPEN:
                continue
            if barrier.is_maintenance:
                self.work_all_before(barrier)
                self.compact(barrier)
                continue
            self._work(barrier, jobs, generation if barrier.barrier_id == until else "1/1")

    def _work(self, barrier: Barrier, jobs: Sequence[str], generation: str = "1/1") -> None:
        for job in jobs:
            if takes_part(self.shop.deployment, barrier, job):
                self.shop.shop._work(self.shop.deployment, barrier, job, generation)

    def work_all_before(self, barrier: Barrier) -> None:
        for before in self.in_flight():
            if before.barrier_id < barrier.barrier_id and before.state is BarrierState.OPEN:
                self._work(before, JOBS)

    def compact(self, barrier: Barrier) -> None:
        tables = self.shop.deployment.tables
        compact(self.shop.deployment, barrier, lambda table, branch: str(replace_files(tables, table, branch)), UPKEEP)

    def finish(self) -> None:
        """Everything in flight is computed and committed, in order."""
        self.open_all()
        for barrier in self.in_flight():
            if barrier.is_maintenance:
                self.compact(barrier)
            else:
                day = self.day_of(barrier)
                self.work(day)
                self.shop.day(day, ["commit"])
        assert not self.in_flight()

    def begin_revision(self) -> Revision:
        """A person gives the last purchase of the third day another amount, and begins a revision."""
        self.revision = self.shop.begin(3, **self._correct(3))
        return self.revision

    def _correct(self, day: int) -> dict[str, Any]:
        """What the revision has to be told."""
        *others, last = self.shop.landed[day]
        rows = [*others, {**last, "amount": last["amount"] + 500}]
        shop = self.shop.shop
        if isinstance(shop, ByEventTime):
            shop.correct(day, rows)
            self.shop.landed[day] = rows
            return {"recut": [shop.purchases.name]}
        self.shop.correct(day, rows)
        return {}

    # --- looking ----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.shop.shop.name

    def in_flight(self) -> list[Barrier]:
        found = self.shop.deployment.meta.barriers.uncommitted(self.name)
        return sorted((each for each in found if each.computed_in == 0), key=lambda each: each.barrier_id)

    def barrier_of(self, day: int) -> Barrier:
        return self.shop.shop._found(self.shop.deployment, day)

    def day_of(self, barrier: Barrier) -> int:
        return next(day for day in range(1, self.today + 1) if self.barrier_of(day).barrier_id == barrier.barrier_id)

    def check(self) -> None:
        """Readers have the newest committed day whole, and who holds an answer has what it had."""
        if self.revision is not None and self._is_published(self.revision):
            self.stands[3] = self.shop.landed[3]
        committed = [day for day in range(1, self.today + 1) if self._is_committed(day)]
        assert self.shop.at() == self.expected(committed[-1])
        for answer, rows in self.held:
            assert self.read(answer) == rows, answer

    def check_history(self) -> None:
        """At rest: each day that is not expired, and `main`; and the neighbour has had its own days only."""
        for day in range(1, self.today + 1):
            try:
                found = self.shop.at(self.barrier_of(day).barrier_id)
            except ExpiredBarrierError:
                continue
            assert found == self.expected(day), f"day {day}"
        assert self.shop.at_level(Level.READ_COMMITTED)[1] == self.shop.mains() == self.shop.at()
        if self.beside is not None:
            assert self.beside.mains() == self.beside.at() == self.beside.expected(max(self.beside.landed))

    def expected(self, day: int) -> Rows:
        """What readers are to get of a day; tables of a job that was away are in no barrier."""
        gone = self.shop.shop.table("prices") if self.world.away and day == 2 else None
        return {name: rows for name, rows in self.shop.expected(day, self.stands).items() if name != gone}

    def read(self, answer: Resolution) -> Rows:
        return {name: self.shop.rows(name, one.snapshot_id) for name, one in answer.tables.items()}

    def _is_published(self, revision: Revision) -> bool:
        try:
            now = self.shop.deployment.meta.revisions.get(self.name, revision.revision)
        except UnknownRevisionError:  # it was not decided when the MetaService was lost
            assert self.lost
            return False
        return now.state is RevisionState.COMMIT

    def _is_committed(self, day: int) -> bool:
        try:
            return self.barrier_of(day).state is BarrierState.COMMIT
        except UnknownBarrierError:
            # what was in flight went with the MetaService, and its run has not started again yet
            assert self.lost
            return False

    # --- the deployment ---------------------------------------------------------------------------

    def connect(self) -> None:
        """As the next process does."""
        self.shop.deployment.close()
        deployment = Deployment.connect(self.backups.settings)
        self.shop = RevisedShop(self.shop.shop, deployment, self.shop.landed)
        if self.beside is not None:
            self.beside = RevisedShop(self.beside.shop, deployment, self.beside.landed)

    def neighbours_day(self) -> None:
        if self.beside is not None:
            self.beside.day(len(self.beside.landed) + 1)


@contextmanager
def told(world: World, backups: Backups, name: str) -> Iterator[Story]:
    """A story after three days, in a topology of that name."""
    folder, settings = str(backups.folder), backups.settings
    with RevisedShop.of(world.kind(folder, settings, name)) as shop:
        neighbour = None
        if world.beside:
            other = Shop(folder, settings, f"{name}_beside")
            other.create()
            neighbour = RevisedShop(other, shop.deployment, {})
        story = Story(world, shop, backups, neighbour)
        for day in range(1, 4):
            if world.away and day == 2:
                leave(shop.deployment, name, "shopping_dag", "price", reason="a rest", actor="story")
            if world.away and day == 3:
                shop.deployment.meta.topologies.readmit(name, "shopping_dag", "price", "story")
            story.work(story.next_day())
            story.finish()
        story.neighbours_day()
        yield story
        story.shop.deployment.close()
