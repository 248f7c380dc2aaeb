"""The seeds' shopping topology, with hands for Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_barrier.coordinator.settings import Settings
from tests.support.shop import Shop, make_shop


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[], Shop]]:
    shops: list[Shop] = []

    def one() -> Shop:
        folder = tmp_path / str(len(shops))
        folder.mkdir()
        shops.append(make_shop(Settings.embedded(str(folder))))
        return shops[-1]

    yield one
    for shop in shops:
        shop.deployment.close()


@pytest.fixture
def shop(make: Callable[[], Shop]) -> Shop:
    return make()
