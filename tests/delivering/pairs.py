"""A sink of two targets, what is done with it, and what has to be true of it in the end."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_barrier.protocol.deliveries import Position, SinkRecord
from airflow_barrier.sinks.postgresql import PostgreSQLSink
from tests.delivering.feed import AMOUNT, PRICE, Feed, Reporting, make_targets
from tests.delivering.lane import Order

DAYS = (
    {(1, 1): 10, (1, 2): 20, (2, 1): 30},
    {(1, 1): 11, (2, 1): 30, (3, 1): 40},
    {(1, 1): 12, (1, 2): 20, (4, 1): 50},
)


@dataclass(frozen=True)
class Pair:
    """A sink with two targets, and a ledger, of its own: whatever happens to it begins with nothing delivered."""

    feed: Feed
    reporting: Reporting
    name: str

    @property
    def sink(self) -> PostgreSQLSink:
        return PostgreSQLSink("reporting", name=self.name, ledger=f"ledger_{self.name}")

    @property
    def targets(self) -> dict[str, str]:
        return {AMOUNT: f"amount_{self.name}", PRICE: f"price_{self.name}"}

    @property
    def record(self) -> SinkRecord:
        return self.feed.deployment.meta.deliveries.get("shopping", self.name)

    def order(self, through: int, port: int | None = None, suspended: str | None = None) -> Order:
        return Order(
            self.feed.settings,
            self.sink,
            self.targets,
            self.reporting.credentials(port),
            through,
            suspended=suspended,
        )

    def deliver(self, through: int, port: int | None = None, *, request_key: str = "deliverer") -> list[int]:
        barrier = self.feed.deployment.meta.barriers.get("shopping", through)
        credentials = self.reporting.credentials(port)
        receipts = self.feed.deliver(self.sink, self.targets, credentials, barrier, request_key=request_key)
        return [receipt.barrier.barrier_id for receipt in receipts]

    def check(self, *delivered: int) -> None:
        """The targets are what the last of these barriers was, and everybody says that just these were delivered."""
        last = delivered[-1]
        for target in self.targets.values():
            assert self.reporting.rows(target) == self.feed.states[last], target
        ledger = self.reporting.run(f"SELECT barrier_id, revision FROM ledger_{self.name}")
        assert ledger == [(last, 0)]
        assert self.record.position == Position(last, 0)
        history = self.feed.deployment.meta.deliveries.history("shopping", self.name)
        assert sorted(each.barrier_id for each in history) == list(delivered)


def make_pair(feed: Feed, reporting: Reporting, name: str) -> Pair:
    pair = Pair(feed, reporting, name)
    make_targets(reporting, tuple(pair.targets.values()))
    return pair
