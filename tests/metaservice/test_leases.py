"""Leases of readers: granted with an answer, renewed, released, and dead by the database's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import Connection, create_engine, event, make_url, text

from airflow_barrier.metaservice import leases, resolving
from airflow_barrier.metaservice.commits import Settled
from airflow_barrier.metaservice.expiring import Expiry
from airflow_barrier.protocol.errors import (
    ConfigurationError,
    ExpiredBarrierError,
    LeaseLostError,
    UnknownBarrierError,
    UnknownTopologyError,
)
from airflow_barrier.protocol.leases import LONGEST_HOLD_SECONDS, Hold, Lease
from airflow_barrier.protocol.levels import Level, Resolution
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import Decision
from airflow_barrier.protocol.topology import Job
from tests.metaservice.test_guards import locks, statements
from tests.metaservice.world import AMOUNT, PRICE, SHOPPING, World
from tests.support.postgresql import PostgreSQL, with_driver
from tests.support.waiting import patience, wait_for

UNCOMMITTED, COMMITTED, REPEATABLE = Level.READ_UNCOMMITTED, Level.READ_COMMITTED, Level.REPEATABLE_READ


def leased(world: World, level: Level = REPEATABLE, seconds: float = 60, at: int | None = None) -> Lease:
    lease = world.meta.answers.resolve(world.name, level, [SHOPPING], at=at, hold=Hold("reader", seconds)).lease
    assert lease is not None
    return lease


def kill(url: str, lease: Lease) -> None:
    """Its time to live is over: nobody has renewed it."""
    engine = create_engine(with_driver(url))
    with engine.begin() as connection:
        over = text("UPDATE barrier_lease SET expires_at = granted_at WHERE lease_id = :lease_id")
        connection.execute(over, {"lease_id": lease.lease_id})
    engine.dispose()


@pytest.fixture
def read(history: World) -> World:
    """Barriers 1 to 3 are COMMIT, 4 is PRECOMMIT."""
    history.open(4)
    history.process_all(4)
    return history


def test_the_answer_comes_with_a_lease_on_it(read: World) -> None:
    for level, at, first, through in (
        (REPEATABLE, None, 3, 3),
        (COMMITTED, None, 4, 4),
        (REPEATABLE, 1, 1, 1),
        (UNCOMMITTED, None, 3, 4),
        (UNCOMMITTED, 2, 2, 2),
    ):
        before = read.meta.now()
        answer = read.meta.answers.resolve(read.name, level, at=at, hold=Hold("ada's report", 60))
        after = read.meta.now()
        lease = answer.lease
        assert lease is not None
        assert (lease.topology, lease.line, lease.barrier_id, lease.through_id) == ("shopping", 0, first, through)
        assert (lease.holder, lease.rolled_back) == ("ada's report", False)
        assert before <= lease.granted_at <= after
        assert before + timedelta(seconds=60) <= lease.expires_at <= after + timedelta(seconds=60)
        assert {table.barrier_id for table in answer.tables.values()} <= set(range(first, through + 1))
    assert str(lease) == f"lease {lease.lease_id} of ada's report on barrier 2 of shopping"


def test_who_holds_what_is_seen(read: World, url: str) -> None:
    one, two, mixed = leased(read, at=1), leased(read, at=2), leased(read, UNCOMMITTED)
    assert read.meta.leases.of(read.name) == [one, two, mixed]
    assert read.meta.leases.of(read.name, 2) == [two]
    assert read.meta.leases.of(read.name, 3) == read.meta.leases.of(read.name, 4) == [mixed]
    read.meta.leases.release(two.lease_id)
    read.meta.leases.release(two.lease_id)
    kill(url, mixed)
    assert read.meta.leases.of(read.name) == [one]
    for unknown in (lambda: read.meta.leases.of("other"), lambda: read.meta.leases.of("other", 1)):
        with pytest.raises(UnknownTopologyError, match="found only: shopping"):
            unknown()
    with pytest.raises(UnknownBarrierError, match=r"barrier 9 of shopping: .* found barriers up to 4"):
        read.meta.leases.of(read.name, 9)


def test_a_person_ends_the_lease_of_a_reader(read: World, url: str) -> None:
    one, two, dead = leased(read, at=1), leased(read, at=2), leased(read, at=2)
    kill(url, dead)
    read.meta.leases.end(read.name, two.lease_id, "ada")
    assert read.meta.leases.of(read.name) == [one]
    with pytest.raises(LeaseLostError):
        read.meta.leases.renew(two.lease_id, 60)
    for lease_id in (two.lease_id, dead.lease_id, 999):
        with pytest.raises(
            ConfigurationError, match=f"lease {lease_id}: expected one that lives and holds .* shopping"
        ):
            read.meta.leases.end(read.name, lease_id, "ada")
    with pytest.raises(UnknownTopologyError, match="found only: shopping"):
        read.meta.leases.end("other", one.lease_id, "ada")
    read.meta.topologies.register("other", "dag", [Job("load", "dag", outlets=("shop.other",))], actor="test")
    with pytest.raises(ConfigurationError, match="holds barriers of other"):
        read.meta.leases.end("other", one.lease_id, "ada")
    (entry,) = (entry for entry in read.meta.audit.newest(read.name) if entry.kind == "lease")
    assert (entry.barrier_id, entry.subject, entry.event, entry.actor) == (2, str(two.lease_id), "released", "ada")
    assert entry.detail == {"holder": "reader"}


@pytest.mark.kills("dead-leases-stay-dead", "lost-lease-is-told")
def test_a_lease_lives_as_long_as_it_is_renewed(read: World, url: str) -> None:
    lease = leased(read, seconds=1)
    renewed = read.meta.leases.renew(lease.lease_id, 3600)
    assert (renewed.lease_id, renewed.granted_at, renewed.rolled_back) == (lease.lease_id, lease.granted_at, False)
    assert (renewed.expires_at - read.meta.now()).total_seconds() == pytest.approx(3600, abs=60)
    kill(url, lease)
    for _ in range(2):
        with pytest.raises(LeaseLostError, match=f"lease {lease.lease_id}: expected it to live, found .* has ended"):
            read.meta.leases.renew(lease.lease_id, 60)
        read.meta.leases.held(read.name)  # takes it away for good


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), LONGEST_HOLD_SECONDS + 1])
def test_a_hold_is_for_some_time_and_not_for_ever(read: World, seconds: float) -> None:
    lease = leased(read)
    for hold in (lambda: Hold("reader", seconds), lambda: read.meta.leases.renew(lease.lease_id, seconds)):
        with pytest.raises(
            ConfigurationError, match=r"more than 0 and at most 604800 seconds \(7 days\) to live, found"
        ):
            hold()
    with pytest.raises(ConfigurationError, match="found an empty holder"):
        Hold(" ", 60)


@pytest.mark.kills("swept-before-held")
def test_new_leases_clean_up_after_dead_ones(read: World, url: str) -> None:
    crashed = [leased(read) for _ in range(leases._SWEPT + 3)]
    for lease in crashed:
        kill(url, lease)
    live = [leased(read).lease_id]
    assert count(read) == [*(lease.lease_id for lease in crashed[leases._SWEPT :]), *live], "so many at once"
    live.append(leased(read).lease_id)
    assert count(read) == live
    kill(url, leased(read, at=1))
    assert read.meta.leases.held(read.name) == ((3, 3),)
    assert count(read) == live


def count(world: World) -> list[int]:
    def look(connection: Connection) -> list[int]:
        return list(connection.execute(text("SELECT lease_id FROM barrier_lease ORDER BY lease_id")).scalars())

    return world.meta._db.read(look)


def test_what_a_barrier_in_flight_carries_is_held_where_it_was_staged(read: World) -> None:
    read.open(5)
    read.process(5, "load", unchanged=True)
    for job in ("amount", "price", "top"):
        read.process(5, job, unchanged=True)
    lease = leased(read, COMMITTED)
    assert (lease.barrier_id, lease.through_id) == (4, 5)
    read.request(4, "load", generation="g2")
    assert rolled_back(read, lease)
    read.process_all(4, "g2")
    read.commit(4)
    assert (4, 5) in read.meta.leases.held(read.name)


# --- rolled back ----------------------------------------------------------------------------------------


def rolled_back(world: World, lease: Lease) -> bool:
    renewed = world.meta.leases.renew(lease.lease_id, 60)
    assert [each.rolled_back for each in world.meta.leases.of(world.name) if each.lease_id == lease.lease_id] == [
        renewed.rolled_back
    ]
    return renewed.rolled_back


@pytest.mark.kills("restaging-is-told-readers")
def test_who_reads_what_is_staged_anew_learns_it(read: World) -> None:
    committed, uncommitted, repeatable = leased(read, COMMITTED), leased(read, UNCOMMITTED), leased(read)
    assert not any(rolled_back(read, lease) for lease in (committed, uncommitted, repeatable))
    read.request(4, "price", generation="cleared")
    assert read.served(COMMITTED)[PRICE] == 3
    assert rolled_back(read, committed)
    assert rolled_back(read, uncommitted)
    assert not rolled_back(read, repeatable)
    read.process_all(4, generation="cleared")
    assert rolled_back(read, committed), "the same barrier, with another answer"
    assert not rolled_back(read, leased(read, COMMITTED))


@pytest.mark.kills("abort-is-told-readers")
def test_who_reads_what_is_aborted_learns_it(read: World) -> None:
    committed, older = leased(read, COMMITTED), leased(read, COMMITTED, at=3)
    read.open(5)
    read.abort(4)
    assert rolled_back(read, committed)
    assert not rolled_back(read, older)


@pytest.mark.kills("another-decision-is-told-readers")
def test_who_reads_what_a_person_decides_against_learns_it(read: World) -> None:
    read.begin_commit(4)
    read.meta.publishing.block(read.name, 4, "moved", "test")
    lease, ours = leased(read, COMMITTED), read.snapshots(4)[AMOUNT]
    keep = Settled(AMOUNT, Decision.KEEP_OURS, theirs=4711, ours=ours, reason="ours", actor="test")
    read.meta.publishing.settle(read.name, 4, keep)
    assert not rolled_back(read, lease)
    read.meta.publishing.block(read.name, 4, "moved again", "test")
    adopt = Settled(AMOUNT, Decision.ADOPT_THEIRS, theirs=4711, ours=ours, reason="theirs", actor="test")
    read.meta.publishing.settle(read.name, 4, adopt)
    assert rolled_back(read, lease)


# --- what races with a lease ----------------------------------------------------------------------------


def answer_of(connection: Connection, level: Level, at: int | None, hold: Hold | None = None) -> Resolution:
    return resolving.resolve(connection, resolving.Asked("shopping", level, [SHOPPING], at), hold)


def grant(connection: Connection, barrier: Barrier, rollbacks: int) -> Lease | None:
    number = barrier.barrier_id
    return leases.grant(connection, "shopping", number, number, rollbacks, Hold("reader", 60))


@pytest.mark.kills("expiring-is-not-leased", "rolled-back-is-not-leased")
def test_no_lease_on_what_has_changed_since_it_was_read(read: World) -> None:
    read.meta.expiry.expire(read.name, [1], "test")
    read.request(4, "price", generation="cleared")
    read.process_all(4, generation="cleared")
    one, two, four = (read.barrier(number) for number in (1, 2, 4))
    assert read.meta._db.write(lambda c: grant(c, one, 0)) is None, "it began to expire"
    assert read.meta._db.write(lambda c: grant(c, two, 0)) is not None
    assert read.meta._db.write(lambda c: grant(c, four, 0)) is None, "it was rolled back"
    assert read.meta._db.write(lambda c: grant(c, four, 1)) is not None


@pytest.mark.kills("lease-locks-its-barrier", "expiry-locks-its-barriers", "rolling-back-locks")
def test_who_leases_and_who_takes_away_ask_for_locks_that_exclude_each_other(read: World) -> None:
    with statements() as said:
        leased(read, at=1)
    assert any("FROM barrier_barrier" in each and each.endswith("FOR KEY SHARE") for each in said)
    with statements() as said:
        read.meta.expiry.expire(read.name, [2], "test")
    assert any("FROM barrier_barrier" in each and each.endswith("FOR UPDATE SKIP LOCKED") for each in said)
    with statements() as said:
        read.request(4, "price", generation="cleared")
    assert any(locks(each, "barrier_barrier") for each in said)


@pytest.fixture
def waiting(url: str, postgresql: PostgreSQL) -> Callable[[], bool]:
    """Whether a session waits for a lock."""
    query = (
        f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{make_url(url).database}' AND wait_event_type = 'Lock'"
    )
    return lambda: int(postgresql.run(query)[0][0]) > 0


@contextmanager
def held_up(world: World) -> Iterator[Connection]:
    """A transaction that somebody is in the middle of; it is committed at the end of the block."""
    with world.meta._db.transaction(write=True) as connection:
        yield connection


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_reader_waits_for_an_expiry_and_is_refused(read: World, waiting: Callable[[], bool]) -> None:
    with ThreadPoolExecutor(1) as pool:
        with held_up(read) as connection:
            assert Expiry(connection).expire(read.name, [1], "test") == [1]
            reader = pool.submit(leased, read, at=1)
            wait_for("the reader waits", waiting)
        with pytest.raises(ExpiredBarrierError):
            reader.result(timeout=patience())
    assert read.meta.leases.of(read.name) == []


@pytest.mark.parametrize("database", ["postgresql"])
def test_an_expiry_spares_what_is_just_being_leased(read: World) -> None:
    with held_up(read) as connection:
        assert answer_of(connection, REPEATABLE, 1, Hold("reader", 60)).lease is not None
        assert read.meta.expiry.expire(read.name, [1, 2], "test") == [2], "it neither takes it nor waits"
    assert read.meta.expiry.expire(read.name, [1], "test") == []


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_clear_waits_for_a_lease_and_the_reader_learns_it(read: World, waiting: Callable[[], bool]) -> None:
    with ThreadPoolExecutor(1) as pool:
        with held_up(read) as connection:
            lease = answer_of(connection, COMMITTED, None, Hold("reader", 60)).lease
            assert lease is not None
            clear = pool.submit(read.request, 4, "price", "cleared")
            wait_for("the clear waits", waiting)
        clear.result(timeout=patience())
    assert rolled_back(read, lease)


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_lease_waits_for_a_clear_and_is_on_what_stands_then(read: World, waiting: Callable[[], bool]) -> None:
    with ThreadPoolExecutor(1) as pool:
        with held_up(read) as connection:
            leases.roll_back(connection, read.barrier(4))
            reader = pool.submit(leased, read, COMMITTED)
            wait_for("the reader waits", waiting)
        assert not rolled_back(read, reader.result(timeout=patience()))


@pytest.mark.parametrize("database", ["postgresql"])
@pytest.mark.parametrize(("ends", "read_then"), [(World.commit, 4), (World.abort, 3)], ids=["commit", "abort"])
def test_a_barrier_that_ends_between_two_looks_at_it_is_looked_at_again(
    read: World, ends: Callable[[World, int], object], read_then: int
) -> None:
    after = [ends]

    def meanwhile(_: Connection, __: object, statement: str, *___: object) -> None:
        if after and "barrier_table_progress" in statement:
            after.pop()(read, 4)

    event.listen(read.meta._db._engine, "after_cursor_execute", meanwhile)
    assert leased(read, COMMITTED).barrier_id == read_then


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_renewal_at_the_last_moment_comes_before_the_expiry_or_too_late(
    read: World, url: str, waiting: Callable[[], bool]
) -> None:
    lease = leased(read, at=1, seconds=1)
    with ThreadPoolExecutor(1) as pool:
        with held_up(read) as connection:
            leases.Leases(connection).renew(lease.lease_id, 60)
            wait_for("its old time is over", lambda: read.meta.now() > lease.expires_at)
            expiry = pool.submit(read.meta.expiry.expire, read.name, [1], "test")
            wait_for("the expiry waits for the renewal", waiting)
        assert expiry.result(timeout=patience()) == []
        kill(url, lease)
        with held_up(read) as connection:
            assert Expiry(connection).expire(read.name, [1], "test") == [1]
            renewal = pool.submit(read.meta.leases.renew, lease.lease_id, 60)
        with pytest.raises(LeaseLostError):
            renewal.result(timeout=patience())
