"""The server is killed and started again, or another one takes over: work goes on, and nothing is done twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url

from airflow_barrier.metaservice import database as database_module
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import OutcomeUnknownError, StoreUnavailableError
from airflow_barrier.protocol.states import BarrierState
from tests.metaservice.auditing import check_audit
from tests.metaservice.world import JOBS, World
from tests.support.deployments import settings_on
from tests.support.ports import free_port
from tests.support.postgresql import PostgreSQL
from tests.support.proxy import Cut, Proxy, through
from tests.support.reporting import report
from tests.support.shop import AMOUNT, COLUMNS, PRICE, SHOPPING, make_shop
from tests.support.waiting import patience

ROWS = [{"amount": 100, "price": 1000}]


@pytest.mark.parametrize("kind", ["postgresql", "postgresql apart"])
def test_the_server_dies_between_all_steps_of_a_barrier(kind: str, tmp_path: Path, own_postgresql: PostgreSQL) -> None:
    """Each step begins with connections that are dead."""
    deaths = 0

    def die() -> None:
        nonlocal deaths
        own_postgresql.kill()
        own_postgresql.start()
        deaths += 1

    with settings_on(kind, tmp_path, own_postgresql) as settings:
        shop = make_shop(settings)
        die()
        barrier = shop.open(1)
        for job in ("load", "amount", "price"):
            die()
            ready = shop.begin(barrier, job)
            die()
            record = shop.write(ready, ROWS)
            die()
            barrier = shop.close(ready, record)
        assert barrier.state is BarrierState.PRECOMMIT
        die()
        assert shop.commit(barrier).barrier.state is BarrierState.COMMIT
        die()
        assert shop.main_totals() == {SHOPPING: 1000, AMOUNT: 100, PRICE: 1000}
        assert [each.barrier_id for each in shop.commit(barrier).published] == []
        shop.deployment.close()
    report(f"{kind}: the server killed {deaths} times between the steps of one barrier")


def test_the_server_dies_within_the_publish(tmp_path: Path, own_postgresql: PostgreSQL) -> None:
    with settings_on("postgresql", tmp_path, own_postgresql) as settings:
        shop = make_shop(settings)
        barrier = shop.open(1)
        shop.process_all(barrier, ROWS)
        meta = shop.deployment.meta
        meta.publishing.begin("shopping", 1, dict.fromkeys(COLUMNS), "test")

        def publish() -> None:
            with meta.publishing.swapping("shopping", 1, "test") as connection:
                assert connection is not None
                own_postgresql.kill()

        with pytest.raises(StoreUnavailableError, match="connection"):
            publish()
        own_postgresql.start()
        assert meta.barriers.get("shopping", 1).state is BarrierState.COMMITTING
        shop.commit(barrier)
        assert shop.main_totals() == {SHOPPING: 1000, AMOUNT: 100, PRICE: 1000}
        shop.deployment.close()


# --- the answer to COMMIT is lost together with the server --------------------------------------------


@pytest.fixture
def url(postgresql: PostgreSQL) -> Iterator[str]:
    with postgresql.database() as url:
        yield url
        check_audit(url)


@pytest.fixture
def proxy(postgresql: PostgreSQL) -> Iterator[Proxy]:
    with Proxy(postgresql.port) as proxy:
        yield proxy


def nowhere() -> int:
    """A port that nobody listens on."""
    return free_port()


@contextmanager
def answer_lost(proxy: Proxy) -> Iterator[None]:
    """The next write transaction's COMMIT gets no answer."""
    with proxy.watching(Cut(None, answered=True)) as seen:
        yield
    assert seen.happened


def test_a_server_that_comes_back_is_asked_what_became_of_the_commit(
    postgresql: PostgreSQL, url: str, proxy: Proxy
) -> None:
    world = World(MetaService(through(proxy, url)))
    world.open(1)
    with answer_lost(proxy):
        proxy.target = nowhere()
        back = threading.Thread(target=lambda: proxy.wait_for_refused(3) and setattr(proxy, "target", postgresql.port))
        back.start()
        assert world.open(2).barrier_id == 2
        back.join(timeout=patience())
    assert [each.barrier_id for each in world.meta.barriers.uncommitted("shopping")] == [1, 2]
    world.meta.close()


def test_a_server_that_stays_away_leaves_the_outcome_open_and_a_second_call_finds_it(
    postgresql: PostgreSQL, url: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "_OUTCOME_PATIENCE", 0.3)
    world = World(MetaService(through(proxy, url)))
    world.open(1)
    requested = {"generation": "g1", "key": "try 1"}
    world.request(1, "load", **requested)
    with answer_lost(proxy):
        proxy.target = nowhere()
        with pytest.raises(OutcomeUnknownError, match=r"expected an answer to COMMIT.*is found, not repeated"):
            world.request(1, "amount", **requested)
        proxy.target = postgresql.port
    assert world.request(1, "amount", **requested).attempt_id == 2
    assert len(world.meta.attempts.of("shopping", 1)) == 2, "adopted, not begun again"
    world.meta.close()


def test_a_commit_that_the_new_server_has_not_heard_of_is_done_again(
    postgresql: PostgreSQL, own_postgresql: PostgreSQL, url: str, proxy: Proxy
) -> None:
    """Replication may lag: what the old server did last is lost, and the new one does not know the transaction."""
    taken_over = own_postgresql.create(make_url(url).database or "")
    postgresql.run("DO $$ BEGIN FOR n IN 1..5000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
    meta = MetaService(through(proxy, url))
    meta.check()
    with answer_lost(proxy):
        proxy.target = own_postgresql.port
        assert meta.topologies.register("shopping", "dag", JOBS, "test") == 1
    assert meta.topologies.names() == ["shopping"]
    meta.close()
    check_audit(taken_over)
