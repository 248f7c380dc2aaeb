"""The clerks of a shop: clients of its database, who place, change and cancel orders, each in one transaction.

    python -m demo.clerks UNTIL COUNT      # UNTIL: ISO time, at which they stop; the database is at SHOP_URL

An order's total is written in the transaction of its items. One transaction in five is rolled back, with a total in it
that nobody may ever see. What a transaction leaves behind is written down before its commit, under its number, in
`clerks.jsonl`: of which of them the database has committed, and in which order, a slot of PostgreSQL's own plugin
`test_decoding` tells afterwards, which nothing else reads.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from decimal import Decimal
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

import psycopg

from demo.oracle import Rows
from demo.places import Places

if TYPE_CHECKING:
    from pathlib import Path

    from demo.local_postgresql import LocalPostgreSQL

USER = "shop"
#: Which of them committed is read from it at the end.
SLOT = "oracle"
_CUSTOMERS = 300
#: Orders that are there before the first barrier, and are copied.
_FORMER = 3_000
#: Of so many transactions one is rolled back, with this total.
_ROLLED_BACK = 5
_WRONG = Decimal(1_000_000)
#: Seconds between two transactions of a clerk.
_PAUSE = 0.05
_TABLES = """
CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer bigint NOT NULL,
    total numeric(12, 2) NOT NULL,
    placed_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE items (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id bigint NOT NULL REFERENCES orders,
    product text NOT NULL,
    quantity bigint NOT NULL,
    price numeric(10, 2) NOT NULL
);
CREATE INDEX ON items (order_id)
"""
_PRODUCTS = ("bread", "milk", "apples", "coffee", "soap", "rice", "tea", "salt")


@dataclass(frozen=True)
class Written:
    """What a transaction leaves of one order: its row and those of its items; no row: it is cancelled."""

    xid: int
    rolled_back: bool
    order_id: int
    order: tuple[Any, ...] | None
    items: tuple[tuple[Any, ...], ...]

    @property
    def text(self) -> str:
        return json.dumps(vars(self), default=str)

    @classmethod
    def of(cls, text: str) -> Written:
        said = json.loads(text)
        order = said["order"] and _order(said["order"])
        items = tuple((*item[:4], Decimal(item[4])) for item in said["items"])
        return cls(said["xid"], said["rolled_back"], said["order_id"], order, items)


def _order(row: list[Any]) -> tuple[Any, ...]:
    number, customer, total, placed_at = row
    return number, customer, Decimal(total), datetime.fromisoformat(placed_at)


def written_file(places: Places) -> Path:
    return places.run / "clerks.jsonl"


def written(places: Places) -> list[Written]:
    """What was written down, without the line that a clerk may have been killed in."""
    return [Written.of(line) for line in written_file(places).read_text().splitlines() if line.endswith("}")]


# --- the shop -------------------------------------------------------------------------------------


def open_shop(server: LocalPostgreSQL, password: str) -> str:
    """A database with orders in it, of a role that may replicate and owns it; its URL. Changes are told from now on."""
    server.run(
        f"CREATE ROLE {USER} LOGIN REPLICATION PASSWORD '{password}'",
        f"CREATE DATABASE {USER} OWNER {USER}",
    )
    url = f"postgresql://{USER}:{password}@127.0.0.1:{server.port}/{USER}"
    with psycopg.connect(url) as connection:
        connection.execute(_TABLES)
        connection.execute(
            "INSERT INTO orders (customer, total) SELECT 1 + n %% %s, 0 FROM generate_series(1, %s) AS n",
            (_CUSTOMERS, _FORMER),
        )
        connection.execute(
            "INSERT INTO items (order_id, product, quantity, price) "
            "SELECT orders.id, (%s::text[])[1 + (orders.id + n) %% %s], n, 1.25 * (1 + orders.id %% 40) "
            "FROM orders, generate_series(1, 3) AS n",
            (list(_PRODUCTS), len(_PRODUCTS)),
        )
        connection.execute(
            "UPDATE orders SET total = (SELECT sum(quantity * price) FROM items WHERE order_id = orders.id)"
        )
    server.run(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'test_decoding')", database=USER)
    return url


@dataclass
class Shop:
    """The rows of the shop's tables, as its transactions have left them."""

    orders: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    items: dict[int, tuple[tuple[Any, ...], ...]] = field(default_factory=dict)

    @classmethod
    def now(cls, url: str) -> Shop:
        """As the database says, in one snapshot."""
        shop = cls()
        with psycopg.connect(url) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("SET TIME ZONE 'UTC'")
            for row in connection.execute("SELECT id, customer, total, placed_at FROM orders").fetchall():
                shop.orders[row[0]] = row
            for row in connection.execute("SELECT id, order_id, product, quantity, price FROM items").fetchall():
                shop.items[row[1]] = (*shop.items.get(row[1], ()), row)
        return shop

    def take(self, change: Written) -> None:
        self.orders.pop(change.order_id, None)
        self.items.pop(change.order_id, None)
        if change.order is not None:
            self.orders[change.order_id] = change.order
            self.items[change.order_id] = change.items

    def tables(self) -> dict[str, Rows]:
        """Table -> its rows, and what each customer has spent."""
        orders: Counter[int] = Counter()
        spent: dict[int, Decimal] = {}
        for number, customer, *_ in self.orders.values():
            orders[customer] += 1
            amounts = (quantity * price for *_, quantity, price in self.items[number])
            spent[customer] = spent.get(customer, Decimal(0)) + sum(amounts, Decimal(0))
        return {
            "orders": Counter(self.orders.values()),
            "items": Counter(item for items in self.items.values() for item in items),
            "customers": Counter((customer, orders[customer], spent[customer]) for customer in orders),
        }


def commits(server: LocalPostgreSQL) -> list[tuple[int, int]]:
    """Where each transaction that the database has committed ends in its log, and its number, in their order."""
    rows = server.run(
        f"SELECT lsn - '0/0', xid::text FROM pg_logical_slot_peek_changes('{SLOT}', NULL, NULL) "
        "WHERE data LIKE 'COMMIT%'",
        database=USER,
    )
    return [(int(lsn), int(xid)) for lsn, xid in rows]


def replay(
    shop: Shop, changes: Iterable[Written], commits: Iterable[tuple[int, int]], positions: Iterable[int]
) -> Iterator[dict[str, Rows]]:
    """The tables at each of these positions of the log, which go up: all that was committed before it."""
    by_number: Mapping[int, Written] = {change.xid: change for change in changes}
    ahead = iter(commits)
    waiting = next(ahead, None)
    for position in positions:
        while waiting is not None and waiting[0] <= position:
            if waiting[1] in by_number:
                shop.take(by_number[waiting[1]])
            waiting = next(ahead, None)
        yield shop.tables()


# --- a clerk --------------------------------------------------------------------------------------


class Clerk(Thread):
    """Works until a moment, and goes on with a new connection where the server is away."""

    def __init__(self, url: str, until: datetime, seed: int, write: Any) -> None:
        super().__init__()
        self._url, self._until, self._write = url, until, write
        self._random = random.Random(seed)
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            while datetime.now(timezone.utc) < self._until:
                with suppress(psycopg.OperationalError):
                    self._work()
                time.sleep(0.2)
        except BaseException as error:
            self.failed = error

    def _work(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("SET TIME ZONE 'UTC'")
            while datetime.now(timezone.utc) < self._until:
                with connection.transaction() as transaction:
                    rolled_back = self._random.randrange(_ROLLED_BACK) == 0
                    number = self._change(connection)
                    if rolled_back:
                        connection.execute("UPDATE orders SET total = %s WHERE id = %s", (_WRONG, number))
                    self._write(self._written(connection, number, rolled_back))
                    if rolled_back:
                        raise psycopg.Rollback(transaction)
                time.sleep(_PAUSE)

    def _change(self, connection: psycopg.Connection[Any]) -> int:
        """Place an order, or change or cancel one; its number."""
        what = self._random.choices(("place", "change", "cancel"), (6, 3, 1))[0]
        found = None
        if what != "place":
            found = connection.execute(
                "SELECT id FROM orders WHERE id >= (SELECT max(id) FROM orders) * %s::float8 ORDER BY id LIMIT 1 "
                "FOR UPDATE SKIP LOCKED",
                (self._random.random(),),
            ).fetchone()
        if found is None:
            return self._place(connection)
        (number,) = found
        if what == "cancel":
            connection.execute("DELETE FROM items WHERE order_id = %s", (number,))
            connection.execute("DELETE FROM orders WHERE id = %s", (number,))
            return int(number)
        connection.execute("UPDATE items SET quantity = quantity + 1 WHERE order_id = %s", (number,))
        self._add_items(connection, number)
        return int(number)

    def _place(self, connection: psycopg.Connection[Any]) -> int:
        row = connection.execute(
            "INSERT INTO orders (customer, total) VALUES (%s, 0) RETURNING id", (self._random.randint(1, _CUSTOMERS),)
        ).fetchone()
        assert row is not None
        for _ in range(self._random.randint(1, 4)):
            self._add_items(connection, row[0])
        return int(row[0])

    def _add_items(self, connection: psycopg.Connection[Any], number: int) -> None:
        product, price = self._random.choice(_PRODUCTS), Decimal(self._random.randint(50, 5_000)) / 100
        connection.execute(
            "INSERT INTO items (order_id, product, quantity, price) VALUES (%s, %s, %s, %s)",
            (number, product, self._random.randint(1, 5), price),
        )
        connection.execute(
            "UPDATE orders SET total = (SELECT sum(quantity * price) FROM items WHERE order_id = orders.id) "
            "WHERE id = %s",
            (number,),
        )

    @staticmethod
    def _written(connection: psycopg.Connection[Any], number: int, rolled_back: bool) -> Written:
        ((xid,),) = connection.execute("SELECT pg_current_xact_id()::text").fetchall()
        order = connection.execute(
            "SELECT id, customer, total, placed_at FROM orders WHERE id = %s", (number,)
        ).fetchone()
        items = connection.execute(
            "SELECT id, order_id, product, quantity, price FROM items WHERE order_id = %s", (number,)
        ).fetchall()
        return Written(int(xid), rolled_back, number, order, tuple(items))


def work(url: str, until: datetime, count: int, places: Places) -> None:
    """Have so many clerks work until then. Raises what a clerk failed of."""
    one_at_a_time = Lock()
    with written_file(places).open("a", buffering=1) as file:

        def write(change: Written) -> None:
            with one_at_a_time:
                file.write(f"{change.text}\n")

        clerks = [Clerk(url, until, seed, write) for seed in range(count)]
        for clerk in clerks:
            clerk.start()
        for clerk in clerks:
            clerk.join()
    for clerk in clerks:
        if clerk.failed is not None:
            raise clerk.failed


if __name__ == "__main__":
    work(os.environ["SHOP_URL"], datetime.fromisoformat(sys.argv[1]), int(sys.argv[2]), Places())
