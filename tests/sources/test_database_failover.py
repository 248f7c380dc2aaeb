"""Another server takes over: a source goes on where its slot was carried along whole, and is told where it was not."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from airflow_barrier.protocol.errors import SourceDataError
from tests.sources.databases import Beside, Database, Image, lasting_database_of
from tests.sources.landing import Cutter, day
from tests.support.postgresql import PostgreSQL as Server
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.drawn("databases"),
    pytest.mark.touches(
        "sources/postgresql/cuts.py", "sources/postgresql/database.py", "sources/postgresql/segments.py"
    ),
]
TABLE = "CREATE TABLE t (id INT PRIMARY KEY, a INT)"


@pytest.fixture
def first() -> Iterator[Server]:
    with Server(max_wal_senders="4", wal_keep_size="256MB") as server:
        yield server


def wait_until_it_has_all(standby: Server, primary: Server) -> None:
    ((written,),) = primary.run("SELECT pg_current_wal_flush_lsn()")
    replayed = f"SELECT pg_last_wal_replay_lsn() >= '{written}'"
    wait_for("the standby to have all", lambda: standby.run(replayed) == [(True,)])


def carry_along(slot: str, primary: Server, standby: Server) -> None:
    """As Patroni does."""
    standby.stop()
    primary.copy_slot(slot, standby)
    standby.start()


@pytest.mark.kills("same-history", "slot-is-there")
def test_servers_take_over_one_after_the_other(first: Server, beside: Beside, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as stack:
        database = lasting_database_of(first)
        second, third = (stack.enter_context(first.standby()) for _ in range(2))
        database.run(TABLE, "INSERT INTO t VALUES (1, 0)")
        source, image = database.source("public.t"), Image()
        barriers = Cutter(source, beside)
        one = barriers.cut(day(1))
        slot = one.end["slot"]
        image.take(one)
        database.run("INSERT INTO t VALUES (2, 0)", "UPDATE t SET a = 1 WHERE id = 1")
        for standby in (second, third):
            wait_until_it_has_all(standby, first)

        first.kill()
        second.run("SELECT pg_promote()")
        database = Database(second, database.name)
        barriers = Cutter(database.source("public.t"), beside, barriers.cuts)
        with pytest.raises(SourceDataError, match=f"slot {slot} is gone.*source resnapshot"):
            barriers.cut(day(2))
        carry_along(slot, first, second)
        with caplog.at_level(logging.WARNING, "airflow_barrier"):
            image.take(barriers.cut(day(2)))
        assert "Its timeline 2 left timeline 1 at 0/" in caplog.text
        assert image.rows("public.t") == [(1, 1), (2, 0)]

        third.follow(second)
        second.run("CHECKPOINT")
        carry_along(slot, second, third)
        database.run("INSERT INTO t VALUES (3, 0)")
        wait_until_it_has_all(third, second)
        third.stop()
        database.run("INSERT INTO t VALUES (4, 0)")
        image.take(barriers.cut(day(3)))
        second.kill()
        third.start()
        third.run("SELECT pg_promote()")
        database = Database(third, database.name)
        source = database.source("public.t")
        database.run("DELETE FROM t WHERE id = 2")
        never_had = pytest.raises(
            SourceDataError, match=r"never had some of what was taken out.*timeline 3 left timeline 2 at 0/.*resnapshot"
        )
        late = Cutter(source, beside, [*barriers.cuts])
        with never_had:
            late.cut(day(4))
        with never_had:
            source.keep_up(late.cuts[-1][1], beside)

        # had the two barriers since been aborted, all would be there: of what was taken out since, the part that counts
        early, other = Cutter(source, beside, barriers.cuts[:1]), Image()
        other.take(one)
        other.take(early.cut(day(4)))
        assert other.rows("public.t") == sorted(database.rows("SELECT * FROM t")) == [(1, 1), (3, 0)]

        late.cuts[-1] = day(3), late.cuts[-1][1].then_anew("another server took over")
        image.take(late.cut(day(4)))
        database.run("INSERT INTO t VALUES (5, 0)")
        image.take(late.cut(day(5)))
        assert image.rows("public.t") == sorted(database.rows("SELECT * FROM t")) == [(1, 1), (3, 0), (5, 0)]


@pytest.mark.kills("copied-slot-has-all")
def test_a_slot_that_was_copied_while_transactions_were_open(first: Server, beside: Beside) -> None:
    """The server that has taken over would leave them out, and say nothing: it has no snapshot from before them."""
    with ExitStack() as stack:
        database = lasting_database_of(first)
        second = stack.enter_context(first.standby())
        database.run(TABLE)
        barriers, image = Cutter(database.source("public.t"), beside), Image()
        image.take(barriers.cut(day(1)))
        slot = barriers.cuts[0][1].end["slot"]
        # they overlap, so that wherever the slot begins to read, one is open
        opened = [stack.enter_context(database.connect(autocommit=False)) for _ in range(3)]
        for number, each in enumerate(opened):
            each.execute("INSERT INTO t VALUES (%s, 0)", [number])
            if number == 1:
                opened[0].commit()
            for _ in range(2):
                first.run("CHECKPOINT")
                image.take(barriers.cut(day(len(barriers.cuts) + 1)))
        first.run("CHECKPOINT")
        carry_along(slot, first, second)
        for each in opened[1:]:
            each.commit()
        wait_until_it_has_all(second, first)
        first.kill()
        second.run("SELECT pg_promote()")
        database = Database(second, database.name)
        barriers = Cutter(database.source("public.t"), beside, barriers.cuts)
        with pytest.raises(SourceDataError, match=f"slot {slot} may leave out transactions.*source resnapshot"):
            barriers.cut(day(9))
        barriers.cuts[-1] = day(8), barriers.cuts[-1][1].then_anew("the slot was copied too early")
        image.take(barriers.cut(day(9)))
        assert image.rows("public.t") == sorted(database.rows("SELECT * FROM t")) == [(0, 0), (1, 0), (2, 0)]
