"""The connection breaks at each statement of every step: the step happens once, and says so, all the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from airflow_barrier.metaservice.database import Database
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import StoreUnavailableError
from tests.metaservice.auditing import check_audit_in
from tests.metaservice.world import World
from tests.postgresql.states import Kept, everything
from tests.postgresql.steps import STEPS, Step, writing_methods
from tests.support.postgresql import PostgreSQL
from tests.support.proxy import Cut, Proxy, Seen, through
from tests.support.reporting import report


@pytest.fixture
def proxy(postgresql: PostgreSQL) -> Iterator[Proxy]:
    with Proxy(postgresql.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def points() -> Iterator[Counter[str]]:
    """At how many points each step was cut."""
    points: Counter[str] = Counter()
    yield points
    report(f"PostgreSQL: the connection cut at {points.total()} points of {len(points)} steps of the MetaService")


def test_every_step_is_listed() -> None:
    assert {step.method for step in STEPS.values()} == writing_methods()


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.drawn
def test_a_step_happens_once_wherever_the_connection_breaks(
    name: str, postgresql: PostgreSQL, proxy: Proxy, points: Counter[str]
) -> None:
    step = STEPS[name]
    with postgresql.database() as url, _rehearsal(step, postgresql, url, proxy) as taken:
        expected, undisturbed = taken(None)
        cuts = undisturbed.worth_cutting
        for cut in cuts:
            found, seen = taken(cut)
            where = f"{cut} of {undisturbed.statements}"
            assert seen.happened, where
            assert found == expected, where
    points.update({name: len(cuts)})


def test_a_look_ends_well_although_its_connection_broke(postgresql: PostgreSQL, proxy: Proxy) -> None:
    """What it read was read; and the next one has another connection."""
    with postgresql.database() as url:
        meta = MetaService(through(proxy, url))
        try:
            for _ in range(2):
                with meta.look():
                    assert meta.topologies.names() == []
                    proxy.cut_all()
        finally:
            meta.close()


@contextmanager
def _rehearsal(
    step: Step, postgresql: PostgreSQL, url: str, proxy: Proxy
) -> Iterator[Callable[[Cut | None], tuple[object, Seen]]]:
    """A function that takes the step, from the same beginning each time: what it did and answered, and the traffic."""
    meta = MetaService(url)
    given = step.prepare(World(meta))
    meta.close()
    kept, database = Kept(postgresql, url), Database(url)
    meta = MetaService(through(proxy, url))
    world = World(meta)

    def taken(cut: Cut | None) -> tuple[object, Seen]:
        kept.put_back()
        meta.topologies.names()  # connects again after a cut, which is not to be counted
        with proxy.watching(cut) as seen:
            try:
                answer = step.call(world, given)
            except StoreUnavailableError:
                # Only who publishes has to begin anew by himself: the swap of the tables is a part of it.
                assert step.method in ("publishing.swapping", "revisions.swapping")
                answer = step.call(world, given)
        database.read(check_audit_in)
        return database.read(lambda connection: everything(connection, answer)), seen

    try:
        taken(None)  # definitions that were read once are remembered, so that each later time says the same
        yield taken
    finally:
        meta.close()
        database.close()
        kept.close()
