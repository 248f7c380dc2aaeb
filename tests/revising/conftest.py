"""A shop on each kind of deployment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.revising.world import RevisedShop
from tests.support.deployments import APART, SHARED, settings_on
from tests.support.postgresql import PostgreSQL


@pytest.fixture(params=[*SHARED, *APART])
def shop(request: pytest.FixtureRequest, tmp_path: Path, postgresql: PostgreSQL) -> Iterator[RevisedShop]:
    with settings_on(request.param, tmp_path, postgresql) as settings, RevisedShop.on(str(tmp_path), settings) as shop:
        yield shop


@pytest.fixture
def embedded(tmp_path: Path, postgresql: PostgreSQL) -> Iterator[RevisedShop]:
    """The first kind alone, for what does not depend on the databases."""
    with settings_on(SHARED[0], tmp_path, postgresql) as settings, RevisedShop.on(str(tmp_path), settings) as shop:
        yield shop
