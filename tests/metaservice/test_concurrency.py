"""Many at once: of those that race for one step exactly one makes it, and the others are told what to do."""

from __future__ import annotations

import multiprocessing
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from sqlalchemy import text

from airflow_barrier.metaservice.barriers import Opening
from airflow_barrier.metaservice.migrate import migrate
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import BarrierError
from airflow_barrier.protocol.records import Attempt, Cut
from airflow_barrier.protocol.states import LIVE_ATTEMPTS, AttemptState, BarrierState
from airflow_barrier.protocol.topology import Job
from tests.metaservice.world import AMOUNT, JOBS, World, day, joining
from tests.support.runs import run_of
from tests.support.waiting import patience

_R = TypeVar("_R")
_MANY = 6


def at_once(work: Callable[[int], _R]) -> list[_R | BarrierError]:
    """``work`` in many threads that start together: its results, or its errors."""
    start = threading.Barrier(_MANY)

    def one(number: int) -> _R | BarrierError:
        start.wait(timeout=patience())
        try:
            return work(number)
        except BarrierError as error:
            return error

    with ThreadPoolExecutor(_MANY) as pool:
        return list(pool.map(one, range(_MANY)))


def test_one_of_many_openers_opens(world: World) -> None:
    def open_first(number: int) -> int:
        return world.meta.barriers.open(
            Opening("shopping", day(1), topology_version=1, cuts=[Cut("files", None, {}, ("a",))], predecessor=0,
            run=run_of(f"run {number}"), timestamp_from="o", max_open=4, baseline=baseline,
            starts=joining(JOBS, baseline), actor="test"),
        ).barrier_id  # fmt: skip

    baseline = dict.fromkeys(world.meta.topologies.get("shopping").tables)
    results = Counter(result if isinstance(result, int) else type(result).__name__ for result in at_once(open_first))
    assert results == {1: 1, "HeadMovedError": _MANY - 1}
    assert len(world.meta.barriers.uncommitted("shopping")) == 1


def test_retries_share_one_attempt_that_one_of_them_starts(world: World) -> None:
    world.open(1)

    def begin(number: int) -> Attempt:
        started = world.meta.attempts.start(world.request(1, "load", key=f"try {number}").attempt_id)
        assert isinstance(started, Attempt)
        return started

    results = at_once(begin)
    attempts = world.meta.attempts.of("shopping", 1)
    running = [a for a in attempts if a.state is AttemptState.RUNNING]
    assert len([a for a in attempts if a.state in LIVE_ATTEMPTS]) <= 1
    started = [r.attempt_id for r in results if isinstance(r, Attempt)]
    assert len(started) == len(set(started)), "no attempt runs twice"
    assert {a.attempt_id for a in running} <= set(started)


def test_of_many_clears_one_attempt_is_left(world: World) -> None:
    world.open(1)
    world.process_all(1)
    results = at_once(lambda number: world.request(1, "amount", generation=f"clear {number}"))
    assert [type(result) for result in results] == [Attempt] * _MANY, results
    attempts = [a for a in world.meta.attempts.of("shopping", 1) if a.job == "amount"]
    assert [a.state for a in attempts] == [AttemptState.FENCED] * _MANY + [AttemptState.REQUESTED]


def test_one_of_many_committers_publishes(world: World) -> None:
    world.open(1)
    world.process_all(1)

    def commit(number: int) -> bool:
        world.begin_commit(1)
        with world.meta.publishing.swapping("shopping", 1, f"committer {number}") as connection:
            if connection is not None:
                connection.execute(text("UPDATE barrier_topology SET incarnation = 'swapped ' || incarnation"))
            return connection is not None

    before = world.meta.topologies.incarnation(world.name)
    assert sorted(at_once(commit), key=str) == [False] * (_MANY - 1) + [True]
    assert world.state(1) is BarrierState.COMMIT
    assert world.process(world.open(2).barrier_id, "load").incarnation == f"swapped {before}", "once, not many times"


def test_a_commit_and_an_abort_never_both_win(world: World) -> None:
    for number in (1, 2, 3):
        barrier_id = world.open(number).barrier_id
        world.process_all(barrier_id)

        def decide(racer: int, barrier_id: int = barrier_id) -> str:
            if racer % 2:
                world.begin_commit(barrier_id)
                return "commit"
            return "abort" if world.abort(barrier_id) else "again"

        results = at_once(decide)
        state = world.state(barrier_id)
        assert ("commit" in results) is (state is BarrierState.COMMITTING)
        assert ("abort" in results) is (state is BarrierState.ABORTED)
        if state is BarrierState.COMMITTING:
            world.publish(barrier_id)


def test_dags_that_register_at_once_are_all_in(world: World) -> None:
    def join(number: int) -> int:
        job = Job(f"job {number}", f"dag {number}", inlets=(AMOUNT,), outlets=(f"shop.t{number}",))
        return world.meta.topologies.register("shopping", job.owner, [job], "test")

    assert sorted(at_once(join), key=str) == list(range(2, _MANY + 2))
    assert len(world.meta.topologies.get("shopping").jobs) == len(JOBS) + _MANY


def test_of_many_topologies_one_gets_the_table(meta: MetaService) -> None:
    def claim(number: int) -> int:
        return meta.topologies.register(f"topology{number}", "dag", [Job("mine", "dag", outlets=("shop.a",))], "test")

    results = Counter(result if isinstance(result, int) else type(result).__name__ for result in at_once(claim))
    assert results == {1: 1, "TableClaimedError": _MANY - 1}


# --- processes ----------------------------------------------------------------------------------------


def first_barrier(url: str, number: int) -> tuple[str, str, bool]:
    """In a process of its own: make the database if need be, register, race for the barrier and its commit."""
    meta = MetaService(url)
    world = World(meta, jobs=[replace(job, externals=()) for job in JOBS[:1]])
    try:
        opened = str(world.open(1, run=run_of(f"run {number}")).barrier_id)
    except BarrierError as error:
        opened = type(error).__name__
    try:
        world.process(1, "load", generation=f"g{number}")
        processed = "processed"
    except BarrierError as error:
        processed = type(error).__name__
    published = False
    if world.state(1) is not BarrierState.OPEN:
        try:
            world.begin_commit(1)
            published = world.publish(1)
        except BarrierError:
            published = False
    meta.close()
    return opened, processed, published


def test_processes_that_find_no_database_make_one_and_share_it(url: str) -> None:
    if url.startswith("postgresql"):
        migrate(url)
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        results = list(pool.map(first_barrier, [url] * 4, range(4), timeout=patience()))
    assert Counter(opened for opened, _, _ in results)["1"] == 1
    assert {opened for opened, _, _ in results} <= {"1", "HeadMovedError", "BarrierOrderError"}
    assert sum(published for _, _, published in results) <= 1
    meta = MetaService(url)
    live = [a for a in meta.attempts.of("shopping", 1) if a.state in LIVE_ATTEMPTS]
    assert len(live) <= 1
    if meta.barriers.get("shopping", 1).state is BarrierState.COMMIT:
        assert [a.state for a in live] == [AttemptState.PROCESSED]
    meta.close()


def open_and_fork(url: str) -> None:
    world = World(MetaService(url))
    world.meta._db.read(lambda connection: connection.info.update(parent=True))
    assert world.meta._db.read(lambda connection: "parent" in connection.info), "the pool gives the same one again"

    def of_the_fork() -> None:
        assert not world.meta._db.read(lambda connection: "parent" in connection.info)
        world.open(1)

    child = multiprocessing.get_context("fork").Process(target=of_the_fork)
    child.start()
    child.join(timeout=patience())
    assert child.exitcode == 0
    assert world.barrier(1).barrier_id == 1
    assert world.open(2).barrier_id == 2
    world.meta.close()


def test_a_fork_makes_connections_of_its_own(world: World, url: str) -> None:
    # not of this process: it has threads, and a fork of it may find their locks taken
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(open_and_fork, url).result(timeout=patience())
    assert [barrier.barrier_id for barrier in world.meta.barriers.uncommitted(world.name)] == [1, 2]
