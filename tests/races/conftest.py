"""A shop on every kind of database, and racers for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_barrier.coordinator.settings import Settings
from tests.races.racers import Racers
from tests.support.deployments import settings_on
from tests.support.postgresql import PostgreSQL
from tests.support.shop import Shop, make_shop

RACERS = 6


@pytest.fixture(params=["sqlite", "postgresql", "postgresql apart"])
def settings(request: pytest.FixtureRequest, tmp_path: Path, postgresql: PostgreSQL) -> Iterator[Settings]:
    with settings_on(request.param, tmp_path, postgresql) as settings:
        yield replace(settings, tag_policy="every=1")


@pytest.fixture
def shop(settings: Settings) -> Iterator[Shop]:
    shop = make_shop(settings)
    yield shop
    shop.deployment.close()


@pytest.fixture
def racers(settings: Settings, shop: Shop) -> Iterator[Racers]:
    """Six processes. (After the shop: the tables are there.)"""
    with Racers([settings] * RACERS) as racers:
        yield racers
