"""Old and new workers meet while the schema is upgraded: that works, or is refused clearly, and is never half."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, make_url, text

from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.metaservice.versions import EXPECTED, VERSION_TABLE
from airflow_barrier.protocol.errors import SchemaVersionError
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.states import BarrierState
from tests.metaservice.newer import NEXT, Newer, ended
from tests.metaservice.world import World
from tests.support.postgresql import PostgreSQL, with_driver
from tests.support.waiting import patience, wait_for

REFUSED = rf"expected schema version {EXPECTED}, found {NEXT}.*newer one has upgraded the database; install that one"


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Newer:
    return Newer.made_in(tmp_path_factory.mktemp("newer"))


@pytest.fixture
def world(url: str) -> Iterator[World]:
    """A worker of this version that has been at work for long: a barrier is PRECOMMIT."""
    meta = MetaService(url, create=True)
    world = World(meta)
    world.open(1)
    world.process_all(1)
    yield world
    meta.close()


def columns(url: str, table: str) -> set[str]:
    engine = create_engine(with_driver(url))
    found = {column["name"] for column in inspect(engine).get_columns(table)}
    engine.dispose()
    return found


def migrated(url: str) -> bool:
    """Wholly, or not at all."""
    engine = create_engine(with_driver(url))
    with engine.connect() as connection:
        version = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalar_one()
        note = inspect(connection).has_table("barrier_note")
    engine.dispose()
    done = "who" in columns(url, "barrier_audit")
    assert (version, note) == ((NEXT, True) if done else (EXPECTED, False)), "half of it"
    return done


def count(url: str, table: str) -> int:
    engine = create_engine(with_driver(url))
    with engine.connect() as connection:
        found = connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one()
    engine.dispose()
    return int(found)


def test_a_worker_from_before_an_upgrade_is_refused_at_once(newer: Newer, world: World, url: str) -> None:
    code, said = newer.run("database", "migrate", url=url)
    assert (code, NEXT in said) == (0, True), said
    assert newer.run("database", "check", url=url)[0] == 0
    before = count(url, "barrier_audit")
    restarted = MetaService(url)
    for call in (
        lambda: world.open(2),
        lambda: world.meta.publishing.begin("shopping", 1, {}, "test"),
        lambda: world.publish(1),
        lambda: world.meta.answers.resolve("shopping", Level.READ_COMMITTED),
        lambda: world.state(1),
        restarted.check,
    ):
        with pytest.raises(SchemaVersionError, match=REFUSED):
            call()
    restarted.close()
    assert count(url, "barrier_audit") == before
    assert migrated(url)


def test_a_database_that_is_older_than_its_worker_is_refused_as_well(newer: Newer, world: World, url: str) -> None:
    """Somebody restored a backup from before the upgrade."""
    code, said = newer.run("database", "check", url=url)
    older = rf"expected schema version {NEXT}, found {EXPECTED}, which is older.*`airflow-barrier database migrate`"
    assert (code, bool(re.search(older, " ".join(said.split())))) == (75, True), said
    engine = create_engine(with_driver(url))
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TABLE {VERSION_TABLE}")
    engine.dispose()
    with pytest.raises(SchemaVersionError, match="found none, which is older"):
        world.open(2)


# --- meeting on PostgreSQL ----------------------------------------------------------------------------


@pytest.fixture
def waiting(url: str, postgresql: PostgreSQL) -> Callable[[], int]:
    """How many sessions wait for a lock."""
    here = f"datname = '{make_url(url).database}' AND wait_event_type = 'Lock'"
    query = f"SELECT count(*) FROM pg_stat_activity WHERE {here}"
    return lambda: int(postgresql.run(query)[0][0])


def state(url: str, barrier_id: int) -> str:
    """Of a barrier, whatever the schema's version."""
    engine = create_engine(with_driver(url))
    query = text("SELECT state FROM barrier_barrier WHERE barrier_id = :barrier_id")
    with engine.connect() as connection:
        found = connection.execute(query, {"barrier_id": barrier_id}).scalar_one()
    engine.dispose()
    return str(found)


@pytest.mark.parametrize("database", ["postgresql"])
def test_an_upgrade_waits_for_a_transaction_and_whoever_comes_later_for_the_upgrade(
    newer: Newer, world: World, url: str, waiting: Callable[[], int]
) -> None:
    world.begin_commit(1)
    with ThreadPoolExecutor(2) as pool:
        with world.meta.publishing.swapping("shopping", 1, "test") as connection:
            assert connection is not None
            upgrade = newer.start("database", "migrate", url=url)
            wait_for("the upgrade waits for the publish", lambda: waiting() == 1)
            late = [pool.submit(world.open, 2), pool.submit(world.state, 1)]
            wait_for("who comes after it waits as well", lambda: waiting() == 3)
        code, said = ended(upgrade)
        assert code == 0, said
        for each in late:
            with pytest.raises(SchemaVersionError, match=REFUSED):
                each.result(timeout=patience())
    assert migrated(url)
    assert state(url, 1) == BarrierState.COMMIT.value, "what was begun before was finished"


@pytest.mark.parametrize("database", ["postgresql"])
def test_nobody_sees_the_middle_of_an_upgrade(
    newer: Newer, world: World, url: str, waiting: Callable[[], int], postgresql: PostgreSQL
) -> None:
    with postgresql.admin(url) as somebody, ThreadPoolExecutor(2) as pool:
        somebody.execute("BEGIN")
        somebody.execute("SELECT FROM barrier_audit")
        upgrade = newer.start("database", "migrate", url=url)
        wait_for("the upgrade has made one table and is held up at the next", lambda: waiting() == 1)
        late = [pool.submit(world.open, 2), pool.submit(world.state, 1)]
        wait_for("workers wait for it", lambda: waiting() == 3)
        somebody.execute("COMMIT")
        code, said = ended(upgrade)
        assert code == 0, said
        for each in late:
            with pytest.raises(SchemaVersionError, match=REFUSED):
                each.result(timeout=patience())
    assert migrated(url)


@pytest.mark.parametrize("database", ["postgresql"])
def test_an_upgrade_that_waits_for_too_long_gives_up_and_workers_go_on(world: World, url: str, tmp_path: Path) -> None:
    impatient = Newer.made_in(tmp_path, lock_timeout=0.2)
    world.begin_commit(1)
    with world.meta.publishing.swapping("shopping", 1, "test"):
        code, said = impatient.run("database", "migrate", url=url)
        assert (code, "holds a lock for more than 0.2 s: end that transaction, then try again" in said) == (75, True), (
            said
        )
    assert not migrated(url)
    assert world.state(1) is BarrierState.COMMIT
    assert world.open(2).barrier_id == 2
    code, said = impatient.run("database", "migrate", url=url)
    assert (code, migrated(url)) == (0, True), said


@pytest.mark.parametrize("database", ["postgresql"])
def test_an_upgrade_that_is_killed_leaves_the_old_schema(
    newer: Newer, world: World, url: str, waiting: Callable[[], int], postgresql: PostgreSQL
) -> None:
    with postgresql.admin(url) as somebody:
        somebody.execute("BEGIN")
        somebody.execute("SELECT FROM barrier_audit")
        upgrade = newer.start("database", "migrate", url=url)
        wait_for("the upgrade has made one table and is held up at the next", lambda: waiting() == 1)
        upgrade.kill()
        upgrade.communicate(timeout=patience())
        somebody.execute("COMMIT")
    # Its session notices at its next word to the process that is no more, and rolls back.
    wait_for("the old schema is there", lambda: not migrated(url) and waiting() == 0)
    assert world.open(2).barrier_id == 2
