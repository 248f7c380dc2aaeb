"""The seeds' example (FLIP-276) as its readers see it: one query, in sessions of each level."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from airflow_barrier.protocol.levels import Level
from airflow_barrier.reading.session import ConsistentSession, FellBack, consistent_session
from tests.support.seeds import SECOND, average_in, average_of
from tests.support.shop import SHOPPING, Shop


@pytest.fixture
def sessions(shop: Shop) -> Iterator[dict[Level, ConsistentSession]]:
    """One of each level, open from beginning to end."""
    with ExitStack() as stack:
        yield {
            level: stack.enter_context(consistent_session(shop.deployment, "shopping", level=level)) for level in Level
        }


def averages(sessions: dict[Level, ConsistentSession]) -> list[float]:
    """What DuckDB answers in each session, and pyiceberg too."""
    answers = []
    for session in sessions.values():
        with session.duckdb() as connection:
            (answer,) = connection.sql(average_in("lake")).fetchone() or ()
        assert average_of(session.table) == answer
        answers.append(answer)
    return answers


def newer(sessions: dict[Level, ConsistentSession]) -> list[float]:
    for session in sessions.values():
        session.refresh()
    return averages(sessions)


def test_each_level_gives_what_the_seeds_say(shop: Shop, sessions: dict[Level, ConsistentSession]) -> None:
    """25 while one of the two tables is ahead, 10 before and 8.33333 after; and back, when a job failed in between."""
    assert averages(sessions) == [10, 10, 10]
    second = shop.open(2)
    shop.process(second, "load", SECOND)
    shop.process(second, "price", SECOND)
    assert averages(sessions) == [10, 10, 10], "an answer stays as it is"
    assert newer(sessions) == [25, 10, 10], "read uncommitted sees half of an epoch"
    shop.process(second, "amount", SECOND)
    assert newer(sessions) == [8.33333, 8.33333, 10], "PRECOMMIT"
    before = sessions[Level.READ_COMMITTED].snapshots

    ready = shop.begin(second, "amount", generation="cleared")  # it failed, and is staged anew
    assert averages(sessions) == [8.33333, 8.33333, 10], "what is held stays readable"
    assert newer(sessions) == [25, 10, 10]
    told = {level: session.fell_back for level, session in sessions.items()}
    assert told == {
        Level.READ_UNCOMMITTED: None,
        Level.READ_COMMITTED: FellBack("shopping", 2, 1),
        Level.REPEATABLE_READ: None,
    }

    shop.close(ready, shop.write(ready, SECOND))
    assert newer(sessions) == [8.33333, 8.33333, 10]
    assert sessions[Level.READ_COMMITTED].fell_back is None
    again = sessions[Level.READ_COMMITTED].snapshots
    assert again != before
    assert again[SHOPPING] == before[SHOPPING]
    shop.commit(second)
    assert newer(sessions) == [8.33333, 8.33333, 8.33333]
