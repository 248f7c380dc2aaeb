"""Sessions beside a swap: what was read stays, what is asked for anew is the new revision, the old one has a number."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from airflow_barrier.protocol.errors import UnknownRevisionError
from airflow_barrier.reading.session import ConsistentSession, consistent_session
from tests.crash.shopping import COLUMNS
from tests.revising.world import RevisedShop


def rows(session: ConsistentSession) -> dict[str, Counter[Any]]:
    found = {}
    for table in session.snapshots:
        arrow = session.table(table).scan().to_arrow()
        names = COLUMNS[table.rpartition(".")[2]]
        found[table] = Counter(tuple(row[name] for name in names) for row in arrow.to_pylist())
    return found


def test_a_session_reads_what_it_read_and_goes_on_when_it_asks_anew(embedded: RevisedShop) -> None:
    embedded.days(1, 3)
    before = {day: embedded.expected(day) for day in (1, 2, 3)}
    with consistent_session(embedded.deployment, "shop") as session:
        embedded.correct(2, embedded.landed[2][:1])
        revision = embedded.begin(2)
        embedded.replay_all(revision)
        assert rows(session) == before[3]
        embedded.publish(revision)
        assert rows(session) == before[3]
        refreshed = session.refresh()
        assert (refreshed.barrier_id, refreshed.revision, session.fell_back) == (3, 1, None)
        assert rows(session) == embedded.expected(3)
    for number, expected in ((0, before[2]), (1, embedded.expected(2))):
        with consistent_session(embedded.deployment, "shop", at=2, revision=number) as session:
            assert session.resolution.revision == number
            assert rows(session) == expected
    with (
        pytest.raises(UnknownRevisionError, match="found that revisions 0, 1 did"),
        consistent_session(embedded.deployment, "shop", at=2, revision=7),
    ):
        pass
