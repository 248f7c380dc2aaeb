"""What any source has to do: a suite that is played against a real one.

    class TestPigeons(Behaviour):
        @pytest.fixture
        def place(self, loft) -> Place:
            return PigeonLoft(loft)

A :class:`Place` is all that the suite has to know: how records arrive there, and how its owners clear it out. Records
have one column, `n`. What only one system knows (partitions, late files, wrong clocks) are tests of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pytest

from airflow_barrier.protocol.codec import decode, encode
from airflow_barrier.protocol.errors import BarrierError, SourceDataError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.topology import ExternalSource
from airflow_barrier.sources import source_of
from airflow_barrier.sources.port import Source
from airflow_barrier.spark.changes import appends, changes
from tests.sources.landing import OTHER_MEANINGS, Cutter
from tests.support.spark import session_on

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.spark import SparkServer


class Place(Protocol):
    """Where records come from. ``source`` is entered already; ``absent`` is one of the same kind that is not there.
    ``catalog``: what the source needs of the tables' room, None for nothing.
    """

    source: Source
    absent: Source
    catalog: Any

    def arrive(self, *numbers: int) -> datetime:
        """Records with these numbers; the timestamp (UTC) of the barrier that they belong to. Later each time."""
        ...

    def clear(self) -> None:
        """What retention, an expiry or a person does at its harshest: all that nobody holds goes."""
        ...


def delta(spark: SparkSession, table: str, start: int | None, end: int | None, mode: str) -> DataFrame:
    return (appends if mode == "appends" else changes)(spark, table, start, end)


class Behaviour:
    #: whether a cut holds its records, so that they stay whatever their owners do
    holds: ClassVar[bool] = False

    @pytest.fixture
    def session(self, spark_server: SparkServer) -> Iterator[SparkSession]:
        with session_on(spark_server, OTHER_MEANINGS) as session:
            yield session

    def numbers(self, session: SparkSession, place: Place, cut: Cut, after: datetime | None, until: datetime) -> Any:
        """As a driver reads them, which is told the declaration, the cut and the secrets as JSON."""
        told = json.loads(json.dumps([encode(place.source.for_driver()), cut.start, cut.end, place.source.secrets]))
        declared, start, end, secrets = told
        source = source_of(decode(ExternalSource, declared))
        frame = source.load(session, Cut(cut.source, start, end, cut.items), after, until, "lake", delta, secrets)
        return sorted(row.n for row in frame.select("n").collect())

    def give_up(self, place: Place, cut: Cut) -> None:
        """No barrier needs the cut any more."""
        place.source.release(cut, place.catalog)

    def epochs(self, session: SparkSession, place: Place, barriers: Cutter) -> list[list[int]]:
        """What each of the barriers reads."""
        spans = pairwise([(None, None), *barriers.cuts])
        return [self.numbers(session, place, cut, after, until) for (after, _), (until, cut) in spans if cut]

    def test_each_record_is_in_one_epoch_and_stays_there(self, session: SparkSession, place: Place) -> None:
        barriers, batches = Cutter(place.source, place.catalog), [[1, 2], [3], [], [4, 5, 6]]
        for batch in batches:
            barriers.cut(place.arrive(*batch))
        place.arrive(7)  # that is of no barrier yet
        for _, cut in barriers.cuts:
            place.source.check(cut)
        assert self.epochs(session, place, barriers) == batches
        whole = place.source.whole([cut for _, cut in barriers.cuts])
        assert self.numbers(session, place, whole, None, barriers.cuts[-1][0]) == [1, 2, 3, 4, 5, 6]

    def test_what_an_aborted_barrier_had_is_in_the_next_one(self, session: SparkSession, place: Place) -> None:
        barriers = Cutter(place.source, place.catalog)
        barriers.cut(place.arrive(1))
        barriers.cut(place.arrive(2))
        for _ in range(2):  # releasing again is fine
            place.source.release(barriers.cuts[-1][1], place.catalog)
        barriers.abort()
        barriers.cut(place.arrive(3))
        assert self.epochs(session, place, barriers) == [[1], [2, 3]]

    def test_what_is_cleared_out_is_refused_or_was_held(self, session: SparkSession, place: Place) -> None:
        """In no case an epoch is read that has become smaller."""
        barriers = Cutter(place.source, place.catalog)
        cut = barriers.cut(place.arrive(1, 2))
        place.clear()
        if self.holds:
            place.source.check(cut)
            place.source.check_held(cut, place.catalog)
            assert self.epochs(session, place, barriers) == [[1, 2]]
            self.give_up(place, cut)
            place.clear()
            with pytest.raises(SourceDataError, match=place.source.name):
                place.source.check_held(cut, place.catalog)
        else:
            with pytest.raises(SourceDataError, match=place.source.name):
                place.source.check(cut)

    def test_who_looks_into_it_is_told_whether_it_is_there(self, place: Place) -> None:
        place.source.look(place.catalog)
        with pytest.raises(BarrierError, match="expected"):
            place.absent.look(place.catalog)

    def test_its_declaration_makes_the_same_source_and_has_no_secrets(self, place: Place) -> None:
        declared = place.source.declare()
        text = json.dumps(encode(declared))
        again = source_of(decode(ExternalSource, json.loads(text)))
        assert (again, again.declare()) == (place.source, declared)
        assert [secret for secret in place.source.secrets.values() if secret in text] == []
