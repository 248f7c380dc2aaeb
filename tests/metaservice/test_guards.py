"""The guards under the protocol: the lock that each transition begins with, compare-and-set, the database's own rules.

Each would do alone in most races, so each is tried here without the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, Engine, delete, event, insert, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import IntegrityError

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.commits import Settled
from airflow_barrier.metaservice.database import Database
from airflow_barrier.metaservice.maintenance import Upkeep
from airflow_barrier.metaservice.mapping import to_columns
from airflow_barrier.metaservice.rows import barrier_key
from airflow_barrier.metaservice.transitions import Event, move_attempt, move_barrier, move_tables
from airflow_barrier.protocol.codec import digest
from airflow_barrier.protocol.deliveries import Position, Remedy
from airflow_barrier.protocol.errors import IllegalTransitionError, JournalError, NotPrecommitError
from airflow_barrier.protocol.journal import History, JournalEntry
from airflow_barrier.protocol.records import Barrier, BarrierKind, Cut, Tries
from airflow_barrier.protocol.states import AttemptState, BarrierState, Decision, TableState
from airflow_barrier.protocol.topology import Job
from tests.metaservice.test_deliveries import delivered, register
from tests.metaservice.world import AMOUNT, SHOPPING, World, day
from tests.support.runs import run_of


@contextmanager
def statements() -> Iterator[list[str]]:
    """What is executed meanwhile, as PostgreSQL would be asked: SQLite has no row locks to ask for."""
    said: list[str] = []

    def listen(connection: Connection, element: object, rows: Sequence[Mapping[str, object]], *_: object) -> None:
        compiled = getattr(element, "compile", None)
        columns = list(rows[0]) if rows else None
        text = str(element) if compiled is None else str(compiled(dialect=postgresql.dialect(), column_keys=columns))
        if not text.startswith("BEGIN"):
            said.append(text)

    event.listen(Engine, "before_execute", listen)
    try:
        yield said
    finally:
        event.remove(Engine, "before_execute", listen)


def locks_topology(said: str) -> bool:
    """Whoever locks it counts a change, for those who wait."""
    return said.startswith("UPDATE barrier_topology SET changes")


def locks(said: str, table: str) -> bool:
    return f"FROM {table}" in said and said.endswith("FOR UPDATE")


# --- the lock -----------------------------------------------------------------------------------------

#: What is asked for is looked at as PostgreSQL would be asked, so it is the same on each database.
on_one_database = pytest.mark.parametrize("database", ["sqlite"])


def life(world: World) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every transition that a barrier can make, one after another."""
    yield "open", lambda: world.open(1)
    yield "lead", lambda: world.lead(1, "price")
    yield "request", lambda: world.request(1, "load")
    load = world.request(1, "load").attempt_id
    yield "start", lambda: world.meta.attempts.start(load)
    yield "rebase", lambda: world.meta.attempts.rebase(load, {SHOPPING: 1})
    yield "close", lambda: world.close(world.meta.attempts.get(load))
    yield "report", lambda: world.meta.attempts.report(load, "test")
    amount = world.request(1, "amount").attempt_id
    yield "give up", lambda: world.meta.attempts.abort(amount, "killed", "test")
    yield "say which try failed", lambda: world.meta.attempts.tried("try 1", Tries(1, 3, None))
    world.process_all(1)
    yield "decide", lambda: world.begin_commit(1)
    yield "block", lambda: world.meta.publishing.block("shopping", 1, "moved", "test")
    yield "unblock", lambda: world.meta.publishing.unblock("shopping", 1, "decided", "test")
    world.meta.publishing.block("shopping", 1, "moved again", "test")
    settled = Settled(SHOPPING, Decision.KEEP_OURS, None, 1, "because", "test")
    yield "settle", lambda: world.meta.publishing.settle("shopping", 1, settled)
    yield "publish", lambda: world.publish(1)
    world.committed(2)
    yield "announce", lambda: world.meta.publishing.announce("shopping", [2], "test")
    yield "expire", lambda: world.meta.expiry.expire("shopping", [1], "test")
    yield "end of expiry", lambda: world.meta.expiry.expired("shopping", [1], "test")
    yield "trim", lambda: world.meta.expiry.trim("shopping", day(100_000), "test")
    deliveries = world.meta.deliveries
    yield "register a sink", lambda: register(world)
    yield "claim a sink", lambda: deliveries.claim("shopping", "prices", "task", None)
    yield "end a claim", lambda: deliveries.unclaim("shopping", "prices", "task")
    yield "fail to deliver", lambda: deliveries.failed("shopping", "prices", "no answer", "test")
    yield "deliver", lambda: delivered(world, Position(2, 0))
    yield "pause", lambda: deliveries.pause("shopping", "prices", "test", "because")
    yield "resume", lambda: deliveries.resume("shopping", "prices", "test", "again")
    yield "decide on a sink", lambda: deliveries.decide("shopping", "prices", Remedy.ADOPT, "test", "because")
    yield "hold for a sink", lambda: deliveries.hold("shopping", "prices", 60, "test")
    yield "release a sink", lambda: deliveries.release("shopping", "prices", "test", "because")
    world.open(3)
    yield "repin", lambda: world.meta.cuts.repin("shopping", 3, Cut("files", None, {"day": 3}), "test")
    yield "begin a source anew", lambda: world.meta.cuts.begin_anew("shopping", "files", "lost", "test")
    yield "abort", lambda: world.abort(3)
    world.open(3, cuts=[Cut.later("files", "no answer")])
    yield (
        "make a cut that was put off",
        lambda: world.meta.cuts.make("shopping", 4, Cut("files", None, {"day": 3}), "test"),
    )
    world.abort(4)
    yield (
        "maintain",
        lambda: world.meta.maintenance.open(
            Upkeep(
                "shopping",
                [AMOUNT],
                run=run_of("upkeep/tonight"),
                request_key="upkeep/tonight",
                generation="g1",
                max_open=4,
                actor="test",
            ),
        ),
    )
    yield "carry", lambda: world.meta.maintenance.carry("shopping", 5, "test")
    revisions = world.meta.revisions
    world.abort(5)
    world.committed(6)
    yield "revise", lambda: world.revise(6, "price")
    world.open(7)
    world.process_all(7)
    yield "extend a revision", lambda: revisions.extend("shopping", 1, "test")
    yield "cut anew", lambda: revisions.recut("shopping", 1, 6, Cut("files", None, {"day": 5}), "test")
    yield "bind a run", lambda: revisions.bind_run("shopping", 1, 6, "dag", "run", 1)
    yield "unbind a run", lambda: revisions.unbind_run("shopping", 1, "dag", "run")
    yield "close the gate", lambda: revisions.gate("shopping", 1, closed=True, actor="test")
    revision = revisions.get("shopping", 1)
    world.replay(revision)
    yield "decide a revision", lambda: world.begin_swap(revision)
    yield "publish a revision", lambda: world.swap(revision)
    world.revise(6, "price")
    yield "cancel a revision", lambda: revisions.cancel("shopping", 2, "because", "test")
    anew = Cut("files", None, {"day": 5, "anew": True}, ("found",))
    yield "revise with a new cut", lambda: world.revise(6, "load", recut=["files"], cuts={6: [anew]})
    history = History("shopping", (), {}, published=0, above_attempt=0)
    yield "recover", lambda: world.meta.recovery.put_back(history, "test", "test")


@pytest.mark.kills("topology-lock", "topology-row-lock")
@on_one_database
def test_every_transition_locks_its_topology_before_it_looks(world: World) -> None:
    for name, transition in life(world):
        with statements() as said:
            transition()
        written = next(i for i, one in enumerate(said) if not one.startswith("SELECT") and not locks_topology(one))
        locked = [i for i, each in enumerate(said) if locks_topology(each)]
        assert locked, f"{name} does not lock the topology"
        assert locked[0] < written, f"{name} writes before it has locked the topology"
        looked = [
            each
            for each in said[locked[0] + 1 : written]
            if any(f"FROM barrier_{table}" in each for table in ("barrier", "attempt", "revision", "sink"))
        ]
        # which run is bound, and whose claim it is, is seen by writing
        blind = ("bind a run", "unbind a run", "end a claim")
        assert looked or name in blind, f"{name} decides on what it saw before it had the lock"


@pytest.mark.kills("registrations-queue")
@on_one_database
def test_registrations_queue_whatever_topology_they_are_for(world: World) -> None:
    """Unless a look says that there is nothing to register."""
    jobs = [Job("mine", "dag", outlets=("shop.mine",))]
    for again in (False, True):
        with statements() as said:
            world.meta.topologies.register("pricing", "dag", jobs, "test")
        locked = [i for i, each in enumerate(said) if locks(each, "barrier_service")]
        if again:
            assert not locked
            continue
        written = next(i for i, each in enumerate(said) if not each.startswith("SELECT"))
        assert len(locked) == 1
        assert 0 < locked[0] < written


@pytest.mark.kills("registrations-queue")
@on_one_database
def test_who_joins_or_leaves_queues_too(world: World) -> None:
    yours = Job("yours", "other", outlets=("shop.yours",))
    changes: dict[str, tuple[str, Callable[[], object]]] = {
        "join": ("fragment", lambda: world.meta.topologies.join("shopping", "other", "yours", [yours], "test")),
        "leave": ("fragment", lambda: world.meta.topologies.leave("shopping", "other", None, "because", "test")),
        "come back": ("withdrawn", lambda: world.meta.topologies.readmit("shopping", "other", None, "test")),
    }
    for name, (looks_at, change) in changes.items():
        with statements() as said:
            change()
        locked = [i for i, each in enumerate(said) if locks(each, "barrier_service")]
        written = next(i for i, each in enumerate(said) if not each.startswith("SELECT"))
        assert locked, f"{name} does not queue"
        assert any(f"FROM barrier_{looks_at}" in each for each in said[locked[0] + 1 : written]), (
            f"{name} decides on what it saw before it was its turn"
        )


# --- compare-and-set ----------------------------------------------------------------------------------


@pytest.fixture
def store(world: World, url: str) -> Iterator[Database]:
    database = Database(url)
    yield database
    database.close()


NOTE = Event("test", "test")


@pytest.mark.kills("compare-and-set", "lost-race-is-noticed")
def test_a_barrier_that_moved_meanwhile_is_left_alone(world: World, store: Database) -> None:
    seen = world.open(1)
    world.process_all(1)
    with pytest.raises(IllegalTransitionError, match="expected 1 in state OPEN, found 0; another process changed it"):
        store.write(lambda c: move_barrier(c, seen, BarrierState.ABORTED, NOTE))
    assert world.state(1) is BarrierState.PRECOMMIT


@pytest.mark.kills("compare-and-set", "lost-race-is-noticed")
def test_an_attempt_that_moved_meanwhile_is_left_alone(world: World, store: Database) -> None:
    world.open(1)
    seen = world.start(1, "load")
    world.close(seen)
    with pytest.raises(IllegalTransitionError, match="expected 1 in state RUNNING, found 0; another process changed"):
        store.write(lambda c: move_attempt(c, seen, AttemptState.ABORTED, NOTE))
    assert world.meta.attempts.get(seen.attempt_id).state is AttemptState.CLOSED


@pytest.mark.kills("compare-and-set", "lost-race-is-noticed")
def test_tables_of_which_one_moved_meanwhile_are_left_alone(world: World, store: Database) -> None:
    barrier = world.open(1)
    world.process(1, "load")

    def stage_both(connection: Connection) -> None:
        both = [SHOPPING, AMOUNT]
        move_tables(connection, barrier, both, TableState.PENDING, TableState.PROCESSED, NOTE, snapshot_id=1)

    before = world.snapshots(1)
    with pytest.raises(IllegalTransitionError, match="expected 2 in state PENDING, found 1; another process changed"):
        store.write(stage_both)
    assert world.snapshots(1) == before


@pytest.mark.kills("moves-are-transitions")
def test_what_may_not_follow_is_refused_where_it_would_be_written(world: World, store: Database) -> None:
    barrier = world.open(1)
    attempt = world.request(1, "load")
    for move in (
        lambda c: move_barrier(c, barrier, BarrierState.COMMIT, NOTE),
        lambda c: move_attempt(c, attempt, AttemptState.PROCESSED, NOTE),
        lambda c: move_tables(c, barrier, [SHOPPING], TableState.PENDING, TableState.WRITTEN, NOTE),
    ):
        with pytest.raises(IllegalTransitionError, match="cannot become"):
            store.write(move)


# --- the database's own rules -------------------------------------------------------------------------


def barrier_row(barrier_id: int, number: int, state: BarrierState) -> dict[str, object]:
    return {
        **barrier_key("shopping", barrier_id),
        "timestamp": day(number),
        "state": state.value,
        "topology_version": 1,
        **to_columns(Barrier, kind=BarrierKind.EPOCH, run=run_of("run"), timestamp_from="test"),
        "opened_at": day(number),
    }


@pytest.mark.kills("one-barrier-a-timestamp")
def test_the_database_itself_has_one_barrier_a_timestamp(world: World, store: Database) -> None:
    world.open(1)
    with pytest.raises(IntegrityError) as refused:
        store.write(lambda c: c.execute(insert(schema.barrier).values(barrier_row(7, 1, BarrierState.OPEN))))
    assert "timestamp" in str(refused.value.orig)
    world.abort(1)
    world.open(1)


@pytest.mark.kills("one-publisher-index")
def test_the_database_itself_has_one_publisher_a_topology(world: World, store: Database) -> None:
    world.open(1)
    world.process_all(1)
    world.begin_commit(1)
    for state in (BarrierState.COMMITTING, BarrierState.BLOCKED):
        row = barrier_row(7, 7, state)
        with pytest.raises(IntegrityError) as refused:
            store.write(lambda c, row=row: c.execute(insert(schema.barrier).values(row)))
        assert "topology" in str(refused.value.orig)


@pytest.mark.kills("one-publisher")
def test_what_another_publishes_is_waited_for_whatever_it_is(world: World, store: Database) -> None:
    """Barriers commit in order, so today the one before is what is waited for; a revision's publish will not be it."""
    world.open(1)
    world.process_all(1)
    row = barrier_row(7, 7, BarrierState.COMMITTING)
    store.write(lambda c: c.execute(insert(schema.barrier).values(row)))
    with pytest.raises(NotPrecommitError, match=r"expected nothing else to be published in shopping, found barrier 7"):
        world.begin_commit(1)
    store.write(lambda c: c.execute(delete(schema.barrier).where(schema.barrier.c.barrier_id == 7)))


@pytest.mark.kills("only-blocked-is-unblocked")
def test_only_what_is_blocked_is_led_out(world: World) -> None:
    """PRECOMMIT may become COMMITTING too, but not that way."""
    world.open(1)
    world.process_all(1)
    settled = Settled(SHOPPING, Decision.KEEP_OURS, None, 1, "because", "test")
    for way in (
        lambda: world.meta.publishing.unblock("shopping", 1, "because", "test"),
        lambda: world.meta.publishing.settle("shopping", 1, settled),
    ):
        with pytest.raises(IllegalTransitionError, match="there is nothing to unblock"):
            way()
    assert world.state(1) is BarrierState.PRECOMMIT


@pytest.mark.kills("recovers-after-what-both-know")
def test_a_recovery_puts_nothing_back_that_is_commit(world: World) -> None:
    barrier = world.committed(1)
    topology = world.meta.topologies.get("shopping")
    entry = JournalEntry(
        topology="shopping",
        barrier_id=1,
        computed_in=0,
        incarnation="another",
        predecessor=0,
        timestamp=barrier.timestamp,
        timestamp_from="test",
        kind=BarrierKind.EPOCH,
        run=run_of("run"),
        topology_digest=digest(topology),
        cuts={},
        tables={},
    )
    history = History("shopping", (entry,), {digest(topology): topology}, published=0, above_attempt=0)
    with pytest.raises(JournalError, match="expected a barrier that the MetaService has not committed, found COMMIT"):
        world.meta.recovery.put_back(history, "test", "test")
    assert world.state(1) is BarrierState.COMMIT


@pytest.mark.kills("one-live-attempt")
def test_the_database_itself_has_one_live_attempt_of_a_job_at_a_barrier(world: World, store: Database) -> None:
    world.open(1)
    attempt = world.start(1, "load")

    def another(connection: Connection) -> None:
        table = schema.attempt
        row = connection.execute(select(table).where(table.c.attempt_id == attempt.attempt_id)).one()._asdict()
        connection.execute(insert(table).values({**row, "attempt_id": attempt.attempt_id + 1}))

    with pytest.raises(IntegrityError):
        store.write(another)


@pytest.mark.kills("item-in-one-cut-key")
def test_the_database_itself_has_an_item_in_one_cut(world: World, store: Database) -> None:
    world.open(1, items=["a"])
    world.open(2)
    row = {**barrier_key("shopping", 2), "source": "files", "item": "a"}
    with pytest.raises(IntegrityError):
        store.write(lambda c: c.execute(insert(schema.cut_item).values(row)))


@pytest.mark.kills("foreign-keys")
def test_the_database_itself_has_nothing_of_a_barrier_that_is_not_there(world: World, store: Database) -> None:
    row = {**barrier_key("shopping", 7), "source": "files", "item": "a"}
    with pytest.raises(IntegrityError):
        store.write(lambda c: c.execute(insert(schema.cut_item).values(row)))
