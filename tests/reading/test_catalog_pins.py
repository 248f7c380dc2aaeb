"""What a catalog of an engine reads: one barrier, as long as it is used, or an error that says to connect again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.errors import (
    BarrierError,
    ConfigurationError,
    LeaseLostError,
    NotReadableYetError,
    UnknownBarrierError,
    UnknownTableError,
)
from airflow_barrier.protocol.levels import Level
from airflow_barrier.reading.catalog_pins import Pin, Warehouse, pin, resolved
from tests.metaservice.world import AMOUNT, SHOPPING, World
from tests.support.cases import cases

READER = "reader"


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment.connect(Settings.embedded(str(tmp_path)))
    yield deployment
    deployment.close()


@pytest.fixture
def world(deployment: Deployment) -> World:
    return World(deployment.meta)


def _pin(deployment: Deployment, warehouse: str) -> Pin:
    given = pin(deployment, Warehouse.parse(warehouse), READER)
    assert Pin.parse(str(given)) == given
    return given


def _snapshots(deployment: Deployment, found: Pin) -> dict[str, int | None]:
    return resolved(deployment, found, READER).snapshots


def test_which_barrier_a_warehouse_asks_for() -> None:
    moment = datetime(2026, 11, 1, tzinfo=timezone.utc)
    with cases() as case:
        for text, expected in (
            ("shopping", Warehouse("shopping")),
            ("shopping@ReadCommitted", Warehouse("shopping", Level.READ_COMMITTED)),
            ("shopping@read uncommitted", Warehouse("shopping", Level.READ_UNCOMMITTED)),
            ("shopping@b12", Warehouse("shopping", Level.REPEATABLE_READ, 12)),
            ("shopping?hold=60", Warehouse("shopping", hold=60)),
            ("shopping@b12.r2?hold=604800", Warehouse("shopping", Level.REPEATABLE_READ, 12, 2, 604800)),
            ("shopping@b12.r0", Warehouse("shopping", Level.REPEATABLE_READ, 12, 0)),
            ("shopping@2026-11-01T00:00:00Z", Warehouse("shopping", Level.REPEATABLE_READ, moment)),
            ("shopping@2026-11-01T01:00:00+01:00", Warehouse("shopping", Level.REPEATABLE_READ, moment)),
        ):
            with case(text):
                assert Warehouse.parse(text) == expected
        for text in (
            *("", "@", "shopping@", "@b1", "no topology", "shop.ping", "shopping@b", "shopping@b1.r", "shopping@b-1"),
            *("shopping@newest", "shopping@2026-11-01", "shopping@2026-11-01T00:00:00", "shopping@b1@b2"),
            *("shopping@b" + 30 * "9", "shopping?hold=0", "shopping?hold=604801", "shopping?hold=1h", "shopping?hold"),
        ):
            with case(text), pytest.raises(ConfigurationError, match="expected TOPOLOGY, or TOPOLOGY@ and one of"):
                Warehouse.parse(text)
        for text in (
            *("", "v1", "shopping.b1.r0.60s.1", "shopping.newest.60s.1", "shopping.read_uncommitted.b1.r0.60s.1"),
            *("shopping.repeatable_read.b1.r0.1", "shopping.repeatable_read.b1.r0.604801s.1"),
        ):
            with case(text), pytest.raises(ConfigurationError, match="connect by a warehouse"):
                Pin.parse(text)


def test_it_is_held_for_as_long_as_it_asks_for(deployment: Deployment, world: World) -> None:
    world.committed(1)
    found = _pin(deployment, "shopping?hold=7200")
    for _ in range(2):
        (lease,) = deployment.meta.leases.of("shopping")
        assert timedelta(minutes=119) < lease.expires_at - datetime.now(timezone.utc) < timedelta(minutes=121)
        deployment.meta.leases.renew(found.lease_id, 60)
        _snapshots(deployment, found)


def test_a_catalog_stays_at_its_barrier(deployment: Deployment, world: World) -> None:
    """Also when newer ones are committed, and when a revision replaces it."""
    world.committed(1)
    before = world.snapshots(1)
    found = _pin(deployment, "shopping@RepeatableRead")
    world.committed(2)
    assert _snapshots(deployment, found) == before
    world.revised(1, "amount")
    assert world.snapshots(1)[AMOUNT] != before[AMOUNT]
    assert _snapshots(deployment, found) == before
    assert _snapshots(deployment, _pin(deployment, "shopping@b1")) == world.snapshots(1)
    assert _snapshots(deployment, _pin(deployment, "shopping@b1.r0")) == before
    assert _snapshots(deployment, _pin(deployment, "shopping")) == world.snapshots(2)
    with pytest.raises(UnknownTableError):
        resolved(deployment, found, READER, ["shop.other"])


@pytest.mark.kills("catalog-ends-with-what-it-read")
def test_at_read_committed_it_ends_with_what_it_read(deployment: Deployment, world: World) -> None:
    world.committed(1)
    for number, lose in ((2, "staged anew"), (3, "aborted")):
        world.open(number)
        world.process_all(number)
        found = _pin(deployment, "shopping@ReadCommitted")
        assert _snapshots(deployment, found) == world.snapshots(number)
        if lose == "staged anew":
            world.start(number, "amount", "g2")
            _has_ended(deployment, found)
            world.process_all(number, "g3")
            world.commit(number)
        else:
            world.abort(number)
        _has_ended(deployment, found)
    found = _pin(deployment, "shopping@ReadCommitted")
    assert found.barrier_id == 2


def _has_ended(deployment: Deployment, found: Pin) -> None:
    with pytest.raises(LeaseLostError, match="found that it was staged anew or aborted; connect again"):
        resolved(deployment, found, READER)


def test_what_is_committed_meanwhile_is_what_was_staged(deployment: Deployment, world: World) -> None:
    world.committed(1)
    world.open(2)
    world.process_all(2)
    found = _pin(deployment, "shopping@ReadCommitted")
    before = _snapshots(deployment, found)
    world.commit(2)
    world.revised(2, "amount")
    assert _snapshots(deployment, found) == before != world.snapshots(2)


@pytest.mark.kills("catalog-stays-at-its-barrier")
def test_before_the_first_barrier(deployment: Deployment, world: World) -> None:
    world.open(1)
    found = _pin(deployment, "shopping")
    assert set(_snapshots(deployment, found).values()) == {None}
    world.process_all(1)
    world.commit(1)
    with pytest.raises(LeaseLostError, match="was before the first barrier; connect again"):
        resolved(deployment, found, READER)


def test_at_read_uncommitted_each_table_is_the_newest(deployment: Deployment, world: World) -> None:
    world.committed(1)
    found = _pin(deployment, "shopping@ReadUncommitted")
    world.open(2)
    world.process(2, "load")
    assert _snapshots(deployment, found) == {**world.snapshots(1), SHOPPING: world.snapshots(2)[SHOPPING]}


@pytest.mark.kills("catalog-ends-with-its-lease", "catalog-is-held-by-its-lease", "lease-of-its-holder")
def test_a_lease_that_ended_is_never_another_barrier(deployment: Deployment, world: World) -> None:
    world.committed(1)
    found = _pin(deployment, "shopping")
    for forged, holder in (
        (found, "somebody else"),
        (Pin(found.topology, found.level, found.barrier_id, found.revision, 60, found.lease_id + 1), READER),
    ):
        with pytest.raises(LeaseLostError, match="connect again"):
            resolved(deployment, forged, holder)
    world.committed(2)
    with pytest.raises(LeaseLostError, match="holds something else"):
        resolved(deployment, Pin(found.topology, found.level, 2, 0, 60, found.lease_id), READER)
    assert _snapshots(deployment, found) == world.snapshots(1)
    deployment.meta.leases.end("shopping", found.lease_id, "a person")
    with pytest.raises(
        LeaseLostError, match=r"catalog at shopping\.repeatable_read\.b1\.r0\..* was released; connect again"
    ):
        resolved(deployment, found, READER)


def test_what_cannot_be_read(deployment: Deployment, world: World) -> None:
    world.committed(1)
    world.open(2)
    expected: dict[str, type[BarrierError]] = {
        "shopping@b2": NotReadableYetError,
        "shopping@b7": UnknownBarrierError,
        "shopping@2016-01-01T00:00:00Z": UnknownBarrierError,
    }
    with cases() as case:
        for warehouse, error in expected.items():
            with case(warehouse), pytest.raises(error):
                _pin(deployment, warehouse)
