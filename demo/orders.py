"""A shop's orders, their items and its customers, asked all at once whether they contradict each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from demo.reports import Joined, Targets

if TYPE_CHECKING:
    from airflow_barrier.tables.iceberg import IcebergTables

#: As `dags/shopping_database` delivers them.
TARGETS: Targets = {
    "orders": (
        "orders",
        "id bigint PRIMARY KEY, customer bigint, total numeric(12, 2), placed_at timestamptz",
    ),
    "items": (
        "items",
        "id bigint PRIMARY KEY, order_id bigint, product text, quantity bigint, price numeric(10, 2)",
    ),
    "customers": ("customers", "customer bigint PRIMARY KEY, orders bigint, spent numeric(12, 2)"),
}
#: The same three, in the lake.
TABLES = {
    "orders": "id BIGINT, customer BIGINT, total DECIMAL(12, 2), placed_at TIMESTAMP",
    "items": "id BIGINT, order_id BIGINT, product STRING, quantity BIGINT, price DECIMAL(10, 2)",
    "customers": "customer BIGINT, orders BIGINT, spent DECIMAL(12, 2)",
}
#: Orders, and how many of them have another total than their items, or a customer who has spent something else.
QUESTION = """
    WITH totals AS (SELECT order_id, sum(quantity * price) AS total FROM items GROUP BY order_id),
        spent AS (SELECT customer, count(*) AS orders, sum(total) AS spent FROM orders GROUP BY customer)
    SELECT count(*), count(*) FILTER (WHERE
        o.total IS DISTINCT FROM t.total OR s.spent IS DISTINCT FROM c.spent OR s.orders IS DISTINCT FROM c.orders
    )
    FROM orders o FULL JOIN totals t ON t.order_id = o.id LEFT JOIN spent s USING (customer)
    FULL JOIN customers c USING (customer)
"""


def joined(iceberg: IcebergTables, snapshots: Mapping[str, int | None]) -> Joined:
    """The same question to the lake's tables at these snapshots."""
    return contradictions({table: _rows(iceberg, table, snapshots[table]) for table in TARGETS})


def contradictions(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> Joined:
    """The answer, from the rows of each table."""
    totals: dict[int, Decimal] = {}
    for item in rows["items"]:
        number = item["order_id"]
        totals[number] = totals.get(number, Decimal(0)) + item["quantity"] * item["price"]
    spent: dict[int, tuple[int, Decimal]] = {}
    for order in rows["orders"]:
        count, sum_ = spent.get(order["customer"], (0, Decimal(0)))
        spent[order["customer"]] = count + 1, sum_ + order["total"]
    said = {order["id"]: order["total"] for order in rows["orders"]}
    customers = {customer["customer"]: (customer["orders"], customer["spent"]) for customer in rows["customers"]}
    return Joined(len(said), _different(said, totals) + _different(spent, customers))


def _different(one: Mapping[int, Any], other: Mapping[int, Any]) -> int:
    return sum(one.get(key) != other.get(key) for key in {*one, *other})


def _rows(iceberg: IcebergTables, table: str, snapshot: int | None) -> list[dict[str, Any]]:
    if snapshot is None:
        return []
    rows: list[dict[str, Any]] = iceberg.load(f"shop.{table}").scan(snapshot_id=snapshot).to_arrow().to_pylist()
    return rows
