"""The seeds' shopping topology on each kind of deployment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.deployments import APART, SHARED, settings_on
from tests.support.postgresql import PostgreSQL
from tests.support.shop import Shop, make_shop


@pytest.fixture(params=SHARED)
def shop(request: pytest.FixtureRequest, tmp_path: Path, postgresql: PostgreSQL) -> Iterator[Shop]:
    """MetaService and catalog in one database."""
    with settings_on(request.param, tmp_path, postgresql) as settings:
        shop = make_shop(settings)
        yield shop
        shop.deployment.close()


@pytest.fixture(params=APART)
def shop_apart(request: pytest.FixtureRequest, tmp_path: Path, postgresql: PostgreSQL) -> Iterator[Shop]:
    """MetaService and catalog in two databases."""
    with settings_on(request.param, tmp_path, postgresql) as settings:
        shop = make_shop(settings)
        yield shop
        shop.deployment.close()


@pytest.fixture
def embedded(tmp_path: Path, postgresql: PostgreSQL) -> Iterator[Shop]:
    """On SQLite, for what is the same on every database."""
    with settings_on("sqlite", tmp_path, postgresql) as settings:
        shop = make_shop(settings)
        yield shop
        shop.deployment.close()
