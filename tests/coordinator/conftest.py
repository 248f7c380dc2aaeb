"""The seeds' shopping topology, on one database and on two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_barrier.coordinator.settings import Settings
from tests.support.shop import Shop, make_shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """MetaService and catalog in one SQLite file."""
    shop = make_shop(Settings.embedded(str(tmp_path)))
    yield shop
    shop.deployment.close()


@pytest.fixture
def shop_apart(tmp_path: Path) -> Iterator[Shop]:
    """MetaService and catalog in two databases."""
    shop = make_shop(
        Settings(
            metaservice_url=f"sqlite:///{tmp_path}/meta.db",
            catalog_uri=f"sqlite:///{tmp_path}/catalog.db",
            warehouse=str(tmp_path / "warehouse"),
        )
    )
    yield shop
    shop.deployment.close()
