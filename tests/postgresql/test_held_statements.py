"""A step is held before each of its statements while another one is taken: what comes of both is what comes of them one
after the other. On SQLite a transaction is an atom; on PostgreSQL it is its statements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from itertools import zip_longest
from operator import itemgetter
from typing import Any

import pytest

from airflow_barrier.metaservice.database import Database
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import BarrierError
from tests.metaservice.auditing import check_audit_in
from tests.metaservice.world import World
from tests.postgresql.states import Kept, everything
from tests.postgresql.steps import STEPS, VISITORS, Step
from tests.support.drawing import is_whole
from tests.support.postgresql import PostgreSQL
from tests.support.proxy import Hold, Proxy, through
from tests.support.reporting import report
from tests.support.waiting import patience, wait_for

#: One after the other, the second one has nothing to write. Both together do, which counts one change more.
_BOTH_WRITE = {(step, step) for step in ("a wait", "a sink", "a sink that is declared otherwise")}


def _pairs() -> dict[str, tuple[Step, Step, Step]]:
    """Where two steps begin, and the two, of which the first one is held: those that begin at the same state (two
    processes may also take the same step), and each with the visitors.
    """
    pairs = {}
    for name, step in STEPS.items():
        beside = {
            other: each
            for other, each in STEPS.items()
            if each.prepare is step.prepare and (name, other) not in _BOTH_WRITE
        }
        for other, each in (beside | VISITORS).items():
            pairs[f"{name}, {other}"] = step, step, each
        for other, each in VISITORS.items():
            pairs[f"{other}, {name}"] = step, each, step
    return pairs


PAIRS = _pairs()
#: Steps that bring what they have looked up before, and what they are told if that is out of date by then.
_LOOK_FIRST = {"barriers.open": "HeadMovedError", "revisions.begin": "RevisionRefusedError"}
#: What the tables hold, and how both steps ended.
Outcome = tuple[dict[str, list[Any]], object]


@pytest.fixture(scope="module")
def starts(postgresql: PostgreSQL) -> Iterator[Callable[[Step], Start]]:
    """A database for each state at which steps begin."""
    made: dict[Callable[[World], Any], Start] = {}
    with ExitStack() as stack:

        def start(step: Step) -> Start:
            if step.prepare not in made:
                url = stack.enter_context(postgresql.database())
                proxy = stack.enter_context(Proxy(postgresql.port))
                made[step.prepare] = stack.enter_context(closing(Start(postgresql, url, proxy, step)))
            return made[step.prepare]

        yield start


@pytest.fixture(scope="module")
def points() -> Iterator[Counter[str]]:
    """At how many points steps were held, and how often the other one had to wait for them."""
    points: Counter[str] = Counter()
    yield points
    report(
        f"PostgreSQL: {points['pairs']} pairs of steps of the MetaService, the first one held at {points['held']} "
        f"statements; at {points['waited']} the other one waited for a lock"
    )


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.drawn
def test_a_step_that_is_held_ends_as_one_after_the_other(
    name: str, starts: Callable[[Step], Start], points: Counter[str]
) -> None:
    begins, held, other = PAIRS[name]
    start = starts(begins)
    legal = start.legal(held, other)
    for transaction in start.transactions(held):
        # a landing, which plays a part of the pairs, holds them at the first, the middle and the last statement or so
        for number in transaction if is_whole() else transaction[:: max(1, len(transaction) // 2)]:
            found, waited = start.meeting(held, other, number)
            assert found in legal, f"held before statement {number}: {[_differences(found, each) for each in legal]}"
            points.update(held=1, waited=waited)
            if waited:  # locks are kept to the end: from here on it is one after the other
                break
    points["pairs"] += 1


def _differences(found: Outcome, legal: Outcome) -> list[str]:
    """What is otherwise than it may be."""
    (rows, answers), (legal_rows, legal_answers) = found, legal
    told = [
        f"{table}: {left} for {right}"
        for table in rows
        for left, right in zip_longest(rows[table], legal_rows[table])
        if left != right
    ]
    return told + ([f"answers {answers} for {legal_answers}"] if answers != legal_answers else [])


class Start:
    """Two processes at a state of the database that can be put back, of which the first one comes through a proxy."""

    def __init__(self, server: PostgreSQL, url: str, proxy: Proxy, step: Step) -> None:
        with closing(MetaService(url)) as meta:
            self._given = step.prepare(World(meta))
        self._kept = Kept(server, url)
        self._proxy = proxy
        self._worlds = World(MetaService(through(proxy, url))), World(MetaService(url))
        self._database = Database(url)
        self._watcher = server.admin(url)

    def close(self) -> None:
        for world in self._worlds:
            world.meta.close()
        self._database.close()
        self._watcher.close()
        self._kept.close()

    def legal(self, held: Step, other: Step) -> list[Outcome]:
        """What may come of both: what comes of one after the other, or of one alone while the other one looks again."""
        steps = held, other
        found = []
        for order in ((0, 1), (1, 0)):
            self._put_back()
            answers = {process: self._taken(steps[process], process) for process in order}
            found.append(self._outcome(answers[0], answers[1]))
        for alone, outdated in ((0, 1), (1, 0)):
            if told := _LOOK_FIRST.get(steps[outdated].method):
                self._put_back()
                answers = {alone: self._taken(steps[alone], alone), outdated: told}
                found.append(self._outcome(answers[0], answers[1]))
        return found

    def transactions(self, held: Step) -> list[list[int]]:
        """Before which statements of which transaction a step is worth being held."""
        self._put_back()
        with self._proxy.watching() as seen:
            self._taken(held, 0)
        numbers = sorted({cut.number for cut in seen.worth_cutting if cut.number is not None})
        transactions: list[list[int]] = []
        for number in numbers:
            if not transactions or seen.statements[number].startswith("BEGIN"):
                transactions.append([])
            transactions[-1].append(number)
        return transactions

    def meeting(self, held: Step, other: Step, number: int) -> tuple[Outcome, bool]:
        """The first one stops before a statement; the other one ends, or waits for it; the first one goes on. What
        comes of it, and whether the other one waited.
        """
        self._put_back()
        hold = Hold(number)
        with self._proxy.watching(hold), ThreadPoolExecutor(2) as threads:
            first = threads.submit(self._taken, held, 0)
            first.add_done_callback(lambda _: hold.come.set())
            try:
                assert hold.come.wait(patience())
                second = threads.submit(self._taken, other, 1)
                wait_for("the other one", lambda: wait([second], timeout=0.01).done or self._waits())
                waited = not second.done()
            finally:
                hold.go_on.set()
            return self._outcome(first.result(patience()), second.result(patience())), waited

    def _put_back(self) -> None:
        self._kept.put_back()
        for world in self._worlds:
            world.meta.topologies.names()  # connected, which is not to be counted

    def _waits(self) -> bool:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return self._watcher.execute(asked).fetchone() != (0,)

    def _taken(self, step: Step, process: int) -> object:
        """What a step answered, or the name of its error."""
        try:
            return step.call(self._worlds[process], self._given)
        except BarrierError as error:
            return type(error).__name__

    def _outcome(self, first: object, second: object) -> Outcome:
        self._database.read(check_audit_in)
        rows, answers = self._database.read(lambda connection: everything(connection, [first, second]))
        rows["barrier_audit"].sort(key=itemgetter("topology"))  # each has an order of its own
        return rows, answers
