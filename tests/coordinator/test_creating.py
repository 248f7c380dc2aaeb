"""Tables that are declared are made when their job joins: by whoever is first, and never in place of rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_barrier.coordinator.creating import create_declared
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.joining import StaysOut, take_part
from airflow_barrier.coordinator.opening import Later
from airflow_barrier.protocol.errors import ConfigurationError, LostStateError, MissingTableError
from airflow_barrier.protocol.starting import declared_start
from airflow_barrier.protocol.topology import Fragment
from airflow_barrier.tables import Table
from airflow_barrier.tables.iceberg import IcebergTables
from tests.races.racers import PROCESSES, Racers
from tests.support.deployments import SHARED, settings_on
from tests.support.postgresql import PostgreSQL
from tests.support.shop import AMOUNT, FRAGMENT, JOBS, MONDAY, PRICE, SHOPPING, Shop

TABLES = (
    Table(SHOPPING, "amount BIGINT, price BIGINT"),
    Table(AMOUNT, "amount BIGINT", partitioned_by=["amount"]),
    Table(PRICE, "price BIGINT"),
)
DECLARED = replace(FRAGMENT, tables=TABLES)
ROWS = [{"amount": 10, "price": 20}]
OWN = Fragment("shopping", "shopping_dag", JOBS[:1], TABLES[:1])
MEMBER = Fragment("shopping", "member_dag", tuple(replace(job, owner="member_dag") for job in JOBS[1:]), TABLES[1:])


@pytest.fixture(params=SHARED)
def bare(request: pytest.FixtureRequest, tmp_path: Path, postgresql: PostgreSQL) -> Iterator[Shop]:
    """A deployment in whose catalog nothing is, not even its own tables."""
    with settings_on(request.param, tmp_path, postgresql) as settings:
        shop = Shop(Deployment.connect(settings))
        yield shop
        shop.deployment.close()


def there(shop: Shop) -> list[str]:
    catalog = shop.deployment.tables.catalog
    return sorted(".".join(each) for each in catalog.list_tables("shop")) if catalog.namespace_exists("shop") else []


def run(shop: Shop, day: int, fragment: Fragment = DECLARED) -> None:
    barrier = shop.open(day, fragment)
    for job in ("load", "amount", "price"):
        shop.process(barrier, job, ROWS)
    shop.commit(barrier)


def test_the_first_barrier_of_an_empty_catalog(bare: Shop) -> None:
    run(bare, 1)
    run(bare, 2)
    assert there(bare) == sorted((SHOPPING, AMOUNT, PRICE))
    assert str(bare.deployment.tables.load(AMOUNT).spec().fields[0].transform) == "identity"


def test_a_member_brings_its_tables(bare: Shop) -> None:
    bare.commit(bare.process(bare.open(1, OWN), "load", ROWS))
    assert there(bare) == [SHOPPING]
    found = take_part(bare.deployment, MEMBER, MEMBER.jobs[0], bare.open(2, OWN).timestamp, "member")
    assert isinstance(found, StaysOut), found
    assert there(bare) == [SHOPPING, AMOUNT], "the other job has not started yet"


def test_a_job_that_waits_for_its_history_has_its_tables(bare: Shop) -> None:
    bare.commit(bare.process(bare.open(1, OWN), "load", ROWS))
    amount = replace(JOBS[1], start_from=declared_start("amount", "history", [SHOPPING]))
    bare.open(2, Fragment("shopping", "shopping_dag", (JOBS[0], amount), TABLES[:2]))
    assert [job.name for job in bare.deployment.meta.topologies.waiting("shopping")] == ["amount"]
    assert there(bare) == [SHOPPING, AMOUNT]


def test_a_new_outlet_of_a_job_that_has_joined(bare: Shop) -> None:
    bare.commit(bare.process(bare.open(1, OWN), "load", ROWS))
    wider = Fragment("shopping", "shopping_dag", (replace(JOBS[0], outlets=(SHOPPING, PRICE)),), TABLES)
    bare.commit(bare.process(bare.open(2, wider), "load", ROWS))
    assert there(bare) == [SHOPPING, PRICE]


def test_what_was_published_is_not_made_anew(bare: Shop) -> None:
    run(bare, 1)
    bare.deployment.tables.catalog.drop_table(AMOUNT)
    barrier = bare.open(2, DECLARED)
    bare.process(barrier, "load", ROWS)
    with pytest.raises(MissingTableError, match=AMOUNT):
        bare.begin(barrier, "amount")
    assert AMOUNT not in there(bare)


def test_a_table_that_is_gone_is_told_when_its_job_comes_back(bare: Shop) -> None:
    """Made anew, it would hide that its rows are lost."""
    run(bare, 1)
    bare.open(2, OWN)
    bare.deployment.tables.catalog.drop_table(AMOUNT)
    with pytest.raises(MissingTableError, match=rf"{AMOUNT}: .* shopping has it at barrier 1, .*restore it"):
        bare.open(3, DECLARED)
    assert AMOUNT not in there(bare)


def test_where_metaservice_and_catalog_were_lost_nothing_is_made_in_their_place(
    tmp_path: Path, postgresql: PostgreSQL
) -> None:
    with settings_on("sqlite", tmp_path, postgresql) as settings:
        shop = Shop(Deployment.connect(settings))
        run(shop, 1)
        shop.deployment.close()
        lost = "sqlite:///" + str(tmp_path / "anew.db")
        anew = Shop(Deployment.connect(replace(settings, metaservice_url=lost, catalog_uri=lost), new=True))
        with pytest.raises(LostStateError, match="airflow-barrier recover shopping"):
            take_part(anew.deployment, MEMBER, MEMBER.jobs[0], MONDAY, "member")
        with pytest.raises(LostStateError):
            anew.open(2, OWN)
        with pytest.raises(LostStateError):
            take_part(anew.deployment, MEMBER, MEMBER.jobs[0], MONDAY, "member")
        assert there(anew) == []
        anew.deployment.close()


def test_a_table_with_other_columns_keeps_its_job_out(bare: Shop) -> None:
    bare.deployment.tables.create(Table(PRICE, "price STRING, more STRING, at DATE NOT NULL"))
    with pytest.raises(ConfigurationError, match="column price is string, declared long; column at is not declared"):
        bare.open(1, DECLARED)
    bare.deployment.tables.catalog.drop_table(PRICE)
    bare.open(1, DECLARED)


def test_what_nobody_declares_is_told_with_the_shortest_way(bare: Shop) -> None:
    with pytest.raises(MissingTableError, match=rf"(?s){PRICE}.*outlets=\[Table\('…', 'id BIGINT, …'\)\]"):
        bare.open(1, replace(DECLARED, tables=TABLES[:2]))


def creates(deployment: Deployment) -> list[bool]:
    return [deployment.tables.create(table) for table in TABLES]


@pytest.mark.parametrize("kind", SHARED)
def test_of_many_that_create_at_once_one_makes_each_table(kind: str, tmp_path: Path, postgresql: PostgreSQL) -> None:
    with settings_on(kind, tmp_path, postgresql) as settings:
        Deployment.connect(settings).close()
        with Racers([settings] * 4) as racers:
            found = racers.race([(creates, ())] * 4)
        assert [sum(each) for each in zip(*found, strict=True)] == [1, 1, 1], found
        shop = Shop(Deployment.connect(settings))
        run(shop, 1)
        shop.deployment.close()


def test_a_table_that_is_called_as_spark_calls_it(bare: Shop) -> None:
    mistaken = (Table(f"lake.{SHOPPING}", "amount BIGINT, price BIGINT"),)
    fragment = replace(OWN, jobs=(replace(JOBS[0], outlets=(mistaken[0].name,)),), tables=mistaken)
    with pytest.raises(ConfigurationError, match=f"found Spark's name of the catalog, lake.*mean '{SHOPPING}'"):
        bare.open(1, fragment)
    with pytest.raises(ConfigurationError, match=f"did you mean '{SHOPPING}'"):
        take_part(bare.deployment, fragment, fragment.jobs[0], MONDAY, "test")
    assert not bare.deployment.tables.catalog.namespace_exists("lake")
    assert bare.deployment.tables.create(mistaken[0])  # a namespace of that name, by hand
    assert bare.open(1, fragment).barrier_id == 1


def test_a_member_of_a_mistyped_topology_makes_no_table(bare: Shop) -> None:
    bare.open(1, OWN)
    mistyped = replace(MEMBER, topology="shoping")
    waits = take_part(bare.deployment, mistyped, mistyped.jobs[0], MONDAY, "test")
    assert isinstance(waits, Later)
    assert "topology shoping; there are: shopping; did you mean 'shopping'?; job" in waits.reason
    assert there(bare) == [SHOPPING]
    assert bare.deployment.meta.topologies.names() == ["shopping"]


def dies_at(settings: Any, step: int) -> None:
    """Creates what is declared, and is killed before or after one of its tables is in the catalog."""
    create, done = IcebergTables.create, 0

    def create_or_die(tables: IcebergTables, table: Table) -> bool:
        nonlocal done
        if done == step:
            os._exit(9)
        done += 1
        return create(tables, table)

    IcebergTables.create = create_or_die  # type: ignore[method-assign]
    create_declared(Deployment.connect(settings), TABLES)


@pytest.mark.parametrize("step", [0, 1, 2])
def test_the_next_try_goes_on_where_one_was_killed(tmp_path: Path, postgresql: PostgreSQL, step: int) -> None:
    with settings_on("sqlite", tmp_path, postgresql) as settings:
        killed = PROCESSES.Process(target=dies_at, args=(settings, step))
        killed.start()
        killed.join()
        assert killed.exitcode == 9
        shop = Shop(Deployment.connect(settings))
        assert len(there(shop)) == step
        run(shop, 1)
        shop.deployment.close()
