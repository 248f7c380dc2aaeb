"""The seeds' example (FLIP-276): the average price of a shop by two tables, before its second epoch, amid it and after.

A fixture `shop` of a test's own module stands before the one of here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from tests.support.shop import Shop

FIRST, SECOND = [{"amount": 100, "price": 1000}], [{"amount": 200, "price": 1500}]
#: FIRST, then half of SECOND, then both.
BEFORE, TORN, AFTER = 10, 25, 8.33333


def average_in(catalog: str) -> str:
    """Return the query, in plain SQL."""
    return (
        f"SELECT round(p.price / a.amount, 5) FROM (SELECT sum(price) AS price FROM {catalog}.shop.user_item_price) p, "
        f"(SELECT sum(amount) AS amount FROM {catalog}.shop.user_item_amount) a"
    )


def average_of(load: Callable[[str], Table]) -> float:
    """Compute what the query answers from tables of pyiceberg's."""
    from tests.support.shop import AMOUNT, PRICE

    price, amount = (
        sum(load(table).scan().to_arrow().column(column).to_pylist())
        for table, column in ((PRICE, "price"), (AMOUNT, "amount"))
    )
    return round(price / amount, 5)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """The first epoch is COMMIT."""
    from airflow_barrier.coordinator.settings import Settings
    from tests.support.shop import make_shop

    shop = make_shop(Settings.embedded(str(tmp_path)))
    shop.process_all(first := shop.open(1), FIRST)
    shop.commit(first)
    yield shop
    shop.deployment.close()


@pytest.fixture
def catalog_uri(shop: Shop) -> Iterator[str]:
    """The address that engines are given for the tables of `shop`."""
    from airflow_barrier.api.server import Served, create_server
    from airflow_barrier.coordinator.deployment import nobody_gets_in
    from tests.api.live import Live

    app = create_server(Served("prod", shop.deployment.meta, nobody_gets_in, shop.deployment), None)
    with Live(app) as live:
        yield f"{live.url.removesuffix('/v1/deployments')}/iceberg/prod"
