"""A reader that asks one question of five tables all the time, and notes when the answer contradicts itself.

    python -m demo.poller SIDE      # one process a side; ends on SIGTERM

Both sides run the same query on the same kind of tables. They differ in which snapshots they read: the plain side what
`main` of each table is at, as every reader does today; the barrier side what the MetaService resolves at repeatable
read. A third reader joins by plain SQL what was delivered to the database at REPORTS_URL, and a fourth one follows the
topic of averages at TOPIC_BROKER. `lake` and `orders` join a shop's orders and their items: the lake's at repeatable
read, and those in the database. Each read becomes a line of JSON in `reads-<side>.jsonl`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow.compute as pc

from demo import orders
from demo.places import Places
from demo.reports import Joined, join
from demo.topic import Followed, Follower

if TYPE_CHECKING:
    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.tables.iceberg import IcebergTables

#: table -> the column that is summed up
QUESTION = {
    "shopping": ("amount", "price"),
    "user_item_amount": ("totalAmount",),
    "user_item_price": ("totalPrice",),
    "user_category_spend": ("spend",),
    "user_item_avg_price": ("avgPrice",),
}
_PAUSE = 1.0
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Answer:
    """What one read said. Items and money are counted in several tables: they have to agree."""

    items: Mapping[str, int]
    money: Mapping[str, str]
    pairs: Mapping[str, int]

    @property
    def empty(self) -> bool:
        return not any(self.items.values())

    @property
    def torn(self) -> bool:
        return any(len(set(counted.values())) > 1 for counted in (self.items, self.money, self.pairs))


def ask(iceberg: IcebergTables, namespace: str, snapshots: Mapping[str, int | None] | None = None) -> Answer:
    """Sum up the tables at ``snapshots``, or (None) at what each table's `main` is at when the read begins."""
    tables = {table: iceberg.load(f"{namespace}.{table}") for table in QUESTION}
    if snapshots is None:
        snapshots = {
            table: head.snapshot_id if (head := loaded.current_snapshot()) else None for table, loaded in tables.items()
        }
    sums: dict[tuple[str, str], Any] = {}
    rows: dict[str, int] = {}
    for table, columns in QUESTION.items():
        snapshot = snapshots[table]
        found = (
            None if snapshot is None else tables[table].scan(snapshot_id=snapshot, selected_fields=columns).to_arrow()
        )
        rows[table] = found.num_rows if found is not None else 0
        for column in columns:
            sums[table, column] = (pc.sum(found[column]).as_py() or 0) if found is not None else 0
    return Answer(
        items={table: int(sums[table, column]) for table, column in _ITEMS},
        money={table: f"{sums[table, column]:.2f}" for table, column in _MONEY},
        pairs={table: rows[table] for table in ("user_item_amount", "user_item_price", "user_item_avg_price")},
    )


_ITEMS = (("shopping", "amount"), ("user_item_amount", "totalAmount"))
_MONEY = (("shopping", "price"), ("user_item_price", "totalPrice"), ("user_category_spend", "spend"))


def reads_file(places: Places, side: str) -> Path:
    return places.run / f"reads-{side}.jsonl"


def poll(side: str, places: Places) -> None:
    """Read until SIGTERM. Reads that found empty tables only are not noted: they agree about nothing."""
    from airflow_barrier.coordinator.deployment import Deployment

    deployment = Deployment.connect(places.settings())
    asks: dict[str, Callable[[], Answer | Joined | Followed | None]] = {
        "plain": lambda: ask(deployment.tables, "plain"),
        "barrier": lambda: _at_repeatable_read(deployment, partial(ask, namespace="shop")),
        "reports": lambda: join(os.environ["REPORTS_URL"]),
        "lake": lambda: _at_repeatable_read(deployment, orders.joined),
        "orders": lambda: join(os.environ["REPORTS_URL"], orders.QUESTION),
    }
    if side == "topic":
        asks[side] = Follower(os.environ["TOPIC_BROKER"]).read
    stop = _Stop()
    with reads_file(places, side).open("a", buffering=1) as file:
        while not stop.asked:
            answer = asks[side]()
            if answer is not None and not answer.empty:
                at = datetime.now(timezone.utc).isoformat()
                file.write(json.dumps({"at": at, "torn": answer.torn, **vars(answer)}) + "\n")
            time.sleep(_PAUSE)
    deployment.close()


def _at_repeatable_read(deployment: Deployment, ask: Callable[..., _Found]) -> _Found | None:
    """What is asked of the tables, at their snapshots by name. None before the first barrier was opened."""
    from airflow_barrier.protocol.levels import Level

    meta = deployment.meta
    if "shopping" not in meta.topologies.names() or meta.barriers.head("shopping") is None:
        return None
    resolved = meta.answers.resolve("shopping", Level.REPEATABLE_READ).tables
    snapshots = {table.removeprefix("shop."): found.snapshot_id for table, found in resolved.items()}
    return ask(deployment.tables, snapshots=snapshots)


class _Stop:
    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, _signum: int, _frame: FrameType | None) -> None:
        self.asked = True


if __name__ == "__main__":
    poll(sys.argv[1], Places())
