"""Two steps of the protocol at once, in every order that their transactions can have: each ends legally.

After each order the world is looked at as it is, and then the topology goes on: whatever was to be done again is done
again, and all tables equal those of a day on which nothing raced.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from airflow_barrier.coordinator.aborting import abort_barrier
from airflow_barrier.coordinator.committing import Committed, NotYet, commit_barrier
from airflow_barrier.coordinator.journal import read_head
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.staging import Adopted, Asking, Ready, begin, close, closing_uri, give_up
from airflow_barrier.protocol.errors import (
    AlreadyCommittedError,
    AttemptTakenError,
    BarrierAbortedError,
    BarrierOrderError,
    FencedAttemptError,
)
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.records import Attempt, Barrier
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.tables._metadata import MAIN
from tests.metaservice.auditing import check_audit
from tests.races.checks import check_published_once
from tests.races.interleaving import all_orders, explore, few_suspensions, stepping
from tests.races.racers import PROCESSES
from tests.races.worlds import worlds
from tests.support.computing import a_core
from tests.support.drawing import OPERATIONS
from tests.support.replacing import replace_files
from tests.support.reporting import report
from tests.support.runs import run_of
from tests.support.shop import COLUMNS, FRAGMENT, MONDAY, SHOPPING, Shop
from tests.support.waiting import patience

ROWS = {day: [{"amount": 10**day, "price": 2 * 10**day}] for day in (1, 2, 3)}
JOBS = ("load", "amount", "price")

# --- operations ---------------------------------------------------------------------------------------

#: Looks up what it needs, and returns what is to be done.
Operation = Callable[[Shop], Callable[[], Any]]


def commit(barrier_id: int) -> Operation:
    return lambda shop: lambda: commit_barrier(shop.deployment, "shopping", barrier_id, actor="committer")


def abort(barrier_id: int) -> Operation:
    return lambda shop: lambda: abort_barrier(shop.deployment, "shopping", barrier_id, reason="bad", actor="person")


def ask(barrier_id: int, job: str, generation: str = "g0") -> Operation:
    """A try of a task, or with another generation a clear."""

    def operation(shop: Shop) -> Callable[[], Any]:
        barrier = shop.deployment.meta.barriers.get("shopping", barrier_id)
        return lambda: begin(
            shop.deployment, barrier, job, Asking(request_key="task", generation=generation, actor=generation)
        )

    return operation


def end(shop: Shop) -> Callable[[], Any]:
    """The task's end after the Spark work: it finds the closing record that the driver left."""
    attempt = _attempt_of_load(shop)
    return lambda: close(shop.deployment, attempt, actor="ender")


def kill(shop: Shop) -> Callable[[], Any]:
    attempt = _attempt_of_load(shop)
    return lambda: give_up(shop.deployment, attempt.attempt_id, reason="killed", actor="killer")


def start(day: int, run_key: str) -> Operation:
    timestamp = MONDAY + timedelta(days=day)
    return lambda shop: (
        lambda: open_barrier(
            shop.deployment, FRAGMENT, timestamp, timestamp_from="test", run=run_of(run_key), actor=run_key
        )
    )


def compact(shop: Shop) -> Callable[[], Any]:
    """Somebody compacts the table that `load` writes: the same rows in a snapshot of its own on `main`."""

    def work() -> str:
        replace_files(shop.deployment.tables, SHOPPING, MAIN)
        return "compacted"

    return work


def _attempt_of_load(shop: Shop) -> Attempt:
    attempt = shop.deployment.meta.attempts.current("shopping", 2, "load")
    assert attempt is not None
    return attempt


# --- what was before ----------------------------------------------------------------------------------


def one_committed(shop: Shop) -> None:
    shop.process_all(shop.open(1), ROWS[1])
    shop.commit(shop.deployment.meta.barriers.get("shopping", 1))


def second_open(shop: Shop) -> None:
    one_committed(shop)
    shop.open(2)


def second_precommit(shop: Shop) -> None:
    second_open(shop)
    shop.process_all(shop.deployment.meta.barriers.get("shopping", 2), ROWS[2])


def third_open(shop: Shop) -> None:
    second_precommit(shop)
    shop.open(3)


def both_precommit(shop: Shop) -> None:
    third_open(shop)
    shop.process_all(shop.deployment.meta.barriers.get("shopping", 3), ROWS[3])


def load_written(shop: Shop) -> None:
    """The driver of `load` has written everything and left its closing record."""
    second_open(shop)
    ready = shop.begin(shop.deployment.meta.barriers.get("shopping", 2), "load")
    record = shop.write(ready, ROWS[2])
    shop.deployment.tables.write_text(closing_uri(shop.deployment, ready.attempt), record.dumps(ready.spec.nonce))


# --- what may come out --------------------------------------------------------------------------------

Kind = str


def kind(outcome: Any) -> Kind:
    return type(outcome).__name__


@dataclass
class Pair:
    """Two operations; ``ends`` are the pairs of outcomes that are legal."""

    before: Callable[[Shop], None]
    first: Operation
    second: Operation
    ends: frozenset[tuple[Kind, Kind]]
    orders: Any = all_orders
    #: whether `main` also moves by a compaction, which is not ours to count
    compacts: bool = False


def names(*pairs: tuple[type, type]) -> frozenset[tuple[Kind, Kind]]:
    return frozenset((one.__name__, other.__name__) for one, other in pairs)


PAIRS = {
    "commit, commit": Pair(second_precommit, commit(2), commit(2), names((Committed, Committed)), few_suspensions),
    "commit of two, commit of the first": Pair(
        both_precommit, commit(3), commit(2), names((Committed, Committed)), few_suspensions
    ),
    "commit, abort": Pair(
        second_precommit, commit(2), abort(2), names((Committed, AlreadyCommittedError), (BarrierAbortedError, tuple))
    ),
    "commit, abort of the next": Pair(third_open, commit(2), abort(3), names((Committed, tuple)), few_suspensions),
    "commit, clear": Pair(
        second_precommit,
        commit(2),
        ask(2, "load", "cleared"),
        names((Committed, AlreadyCommittedError), (NotYet, Ready)),
        few_suspensions,
    ),
    "commit, begin at the next": Pair(
        third_open, commit(2), ask(3, "load"), names((Committed, Ready)), few_suspensions
    ),
    "close, clear": Pair(
        load_written,
        end,
        ask(2, "load", "cleared"),
        names((Barrier, Ready), (FencedAttemptError, Ready)),
    ),
    "close, retry": Pair(load_written, end, ask(2, "load"), names((Barrier, Adopted))),
    "close, kill": Pair(load_written, end, kill, names((Barrier, Attempt), (FencedAttemptError, Attempt))),
    "close, abort": Pair(load_written, end, abort(2), names((Barrier, tuple), (BarrierAbortedError, tuple))),
    "begin, abort": Pair(second_open, ask(2, "load"), abort(2), names((Ready, tuple), (BarrierAbortedError, tuple))),
    "begin, begin of a retry": Pair(
        second_open,
        ask(2, "load"),
        ask(2, "load"),
        names(
            (Ready, Ready),
            (Ready, FencedAttemptError),
            (FencedAttemptError, Ready),
            (Ready, AttemptTakenError),
            (AttemptTakenError, Ready),
        ),
        few_suspensions,
    ),
    "begin, clear": Pair(
        second_open,
        ask(2, "load"),
        ask(2, "load", "cleared"),
        names((Ready, Ready), (FencedAttemptError, Ready), (Ready, FencedAttemptError)),
        few_suspensions,
    ),
    "open, open of the same time": Pair(one_committed, start(2, "a"), start(2, "b"), names((Opened, Opened))),
    "open, open of a later time": Pair(
        one_committed, start(2, "a"), start(3, "b"), names((Opened, Opened), (BarrierOrderError, Opened))
    ),
    "open, abort of the one before": Pair(second_open, start(3, "a"), abort(2), names((Opened, tuple))),
    "open, commit of the one before": Pair(
        second_precommit, start(3, "a"), commit(2), names((Opened, Committed)), few_suspensions
    ),
    "compaction, commit": Pair(second_precommit, compact, commit(2), names((str, Committed)), compacts=True),
    "compaction, begin": Pair(second_open, compact, ask(2, "load"), names((str, Ready)), compacts=True),
    "compaction, close": Pair(load_written, compact, end, names((str, Barrier)), compacts=True),
}


#: On one database, and on two, where the tables are published in a transaction of their own.
CASES = [(name, shared) for shared in (True, False) for name in PAIRS]
#: Operations by the words of a pair's name.
_OPERATIONS = {
    **{word: OPERATIONS[word] for word in ("open", "commit", "abort", "compaction")},
    **dict.fromkeys(("begin", "close", "clear", "retry", "kill"), OPERATIONS["job"]),
}


def _item(case: tuple[str, bool]) -> Any:
    attacked = [file for word in re.findall(r"\w+", case[0]) for file in _OPERATIONS.get(word, ())]
    where = "shared" if case[1] else "apart"
    return pytest.param(case, id=f"{case[0]}-{where}", marks=pytest.mark.touches(*attacked))


@pytest.fixture(scope="module")
def explorations(request: pytest.FixtureRequest) -> Iterator[dict[tuple[str, bool], Future[str]]]:
    """Those that were asked for, in two processes of their own: together they take a minute of computing."""
    chosen = {item.callspec.params["case"] for item in request.session.items if item.module is request.module}
    with ProcessPoolExecutor(2, mp_context=PROCESSES) as pool:
        yield {case: pool.submit(run, *case) for case in CASES if case in chosen}


@pytest.mark.parametrize("case", [_item(case) for case in CASES])
@pytest.mark.timeout(600)
@pytest.mark.drawn
def test_in_every_order_both_end_legally_and_nothing_is_lost(
    case: tuple[str, bool], explorations: dict[tuple[str, bool], Future[str]]
) -> None:
    report(explorations[case].result(timeout=patience(600)))


def run(name: str, shared: bool) -> str:
    """All orders of a pair; what there was, in a line."""
    pair = PAIRS[name]
    seen: Counter[tuple[Kind, ...]] = Counter()
    ends: set[str] = set()
    with a_core(), worlds(shared=shared) as made, stepping(shared=shared):
        made.keep(pair.before, processes=3)
        first, second, looker = made.shops

        def operations() -> list[Callable[[], Any]]:
            made.restore()
            return [pair.first(first), pair.second(second)]

        def check(outcomes: list[Any]) -> None:
            seen[tuple(map(kind, outcomes))] += 1
            assert tuple(map(kind, outcomes)) in pair.ends, outcomes
            # from the same end the same follows, so it is looked at once
            if (now := fingerprint(looker)) not in ends:
                ends.add(now)
                check_journal(looker)
                for step in (lambda _: None, settle):
                    step(looker)
                    if pair.compacts:
                        check_audit(made.settings.metaservice_url)
                    else:
                        check_published_once(looker, made.settings)

        watch = (lambda: None) if pair.compacts else (lambda: check_nothing_torn(looker))
        explored = explore(operations, check, watch, pair.orders)
    outcomes = ", ".join(f"{count} {' + '.join(both)}" for both, count in sorted(seen.items()))
    return (
        f"races, {name}, {'shared' if shared else 'apart'}: {explored.orders} orders of up to {explored.steps} steps, "
        f"{len(ends)} ends; {outcomes}"
    )


# --- what is always true --------------------------------------------------------------------------------


def check_nothing_torn(shop: Shop) -> None:
    """All tables' `main` are at one barrier, the one that is COMMIT or the one that is being published."""
    meta = shop.deployment.meta
    mains = shop.deployment.tables.mains(list(COLUMNS))
    served = meta.answers.resolve("shopping", Level.REPEATABLE_READ)
    allowed = [{name: table.snapshot_id for name, table in served.tables.items()}]
    if not shop.deployment.shares_database:
        allowed += [
            {each.table: each.snapshot_id for each in meta.barriers.progress("shopping", barrier.barrier_id)}
            for barrier in meta.barriers.uncommitted("shopping")
            if barrier.state is BarrierState.COMMITTING
        ]
    assert mains in allowed, f"{mains} is none of {allowed}"


def check_journal(shop: Shop) -> None:
    head, newest = read_head(shop.deployment, "shopping"), shop.deployment.meta.barriers.newest_decided("shopping")
    assert head is not None
    assert newest is not None
    assert head.barrier_id == newest.barrier_id, "the journal's head is the newest decision"


def fingerprint(shop: Shop) -> str:
    """What the world is like, but for times and random numbers: from the same the same follows."""
    meta = shop.deployment.meta
    documents = shop.deployment.tables._committer.read(list(COLUMNS))
    numbers: dict[int | None, int] = {None: -1}
    for document in documents.values():
        for snapshot in document["snapshots"]:
            numbers[snapshot["snapshot-id"]] = len(numbers)
    head = read_head(shop.deployment, "shopping")
    said = (
        [
            (e.barrier_id, e.kind, e.subject, e.event, e.before, e.after)
            for e in meta.audit.newest("shopping", limit=10_000)
        ],
        [
            (barrier.barrier_id, barrier.predecessor, barrier.state, each.table, each.state, numbers[each.snapshot_id])
            for barrier in meta.barriers.uncommitted("shopping")
            for each in meta.barriers.progress("shopping", barrier.barrier_id)
        ],
        [sorted((name, numbers[ref["snapshot-id"]]) for name, ref in d["refs"].items()) for d in documents.values()],
        [[numbers[entry["snapshot-id"]] for entry in d["snapshot-log"]] for d in documents.values()],
        head,
    )
    return repr(said)


def settle(shop: Shop) -> None:
    """Everybody tries again until days 2 and 3 are done, and all is as if nothing had happened."""
    for day in (2, 3):
        if shop.deployment.meta.barriers.at("shopping", MONDAY + timedelta(days=day)) is None:
            head = shop.deployment.meta.barriers.head("shopping")
            assert head is not None
            if head.timestamp > MONDAY + timedelta(days=day):
                continue  # the later time was faster: this one's data are in its epoch
            shop.open(day)
    for barrier in shop.deployment.meta.barriers.uncommitted("shopping"):
        day = (barrier.timestamp - MONDAY).days
        for job in JOBS:
            step = begin(shop.deployment, barrier, job, Asking(request_key="after", generation="g0", actor="after"))
            if isinstance(step, Ready):
                close(shop.deployment, step.attempt, record=shop.write(step, ROWS[day]), actor="after")
    for barrier in shop.deployment.meta.barriers.uncommitted("shopping"):
        shop.commit(barrier)
    done = [b for b in (1, 2, 3) if shop.deployment.meta.barriers.at("shopping", MONDAY + timedelta(days=b))]
    price = sum(2 * 10**day for day in done)
    assert shop.main_totals() == {SHOPPING: price, "shop.user_item_amount": price // 2, "shop.user_item_price": price}
