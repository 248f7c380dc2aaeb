"""A shop on each kind of deployment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.revising.world import RevisedShop, shop_on
from tests.support.deployments import APART, SHARED
from tests.support.kept import Kept
from tests.support.postgresql import PostgreSQL


@pytest.fixture(params=[*SHARED, *APART])
def shop(request: pytest.FixtureRequest, tmp_path: Path, postgresql: PostgreSQL, kept: Kept) -> Iterator[RevisedShop]:
    with shop_on(request.param, tmp_path, postgresql, kept) as shop:
        yield shop


@pytest.fixture
def embedded(kept: Kept) -> Iterator[RevisedShop]:
    """The first kind alone, for what does not depend on the databases."""
    with RevisedShop.in_kept(kept) as shop:
        yield shop
