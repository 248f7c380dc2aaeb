"""A sink of two targets, what is done with it, and what has to be true of it in the end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from uuid import uuid4

from psycopg import sql

from airflow_barrier.protocol.deliveries import Position, SinkRecord
from airflow_barrier.sinks.postgresql import PostgreSQLSink
from tests.delivering.feed import AMOUNT, PRICE, Feed, Reporting, make_targets
from tests.delivering.lane import Order
from tests.support.postgresql import PASSWORD, PostgreSQL
from tests.support.proxy import Proxy

DAYS = (
    {(1, 1): 10, (1, 2): 20, (2, 1): 30},
    {(1, 1): 11, (2, 1): 30, (3, 1): 40},
    {(1, 1): 12, (1, 2): 20, (4, 1): 50},
)
#: How statements of a delivery begin; the last one that begins so is meant.
BEGIN, COPY, INSERT, LEDGER, COMMIT = "BEGIN", "COPY", "INSERT", "UPDATE", "COMMIT"
#: A role that may deliver, but may neither end the sessions of the tests' user nor create a table.
STRANGER = "stranger"


@dataclass(frozen=True)
class Pair:
    """A sink with two targets of its own: whatever happens to it begins with nothing delivered."""

    feed: Feed
    reporting: Reporting
    name: str
    ledger: str

    @property
    def sink(self) -> PostgreSQLSink:
        return PostgreSQLSink("reporting", name=self.name, ledger=self.ledger)

    @property
    def targets(self) -> dict[str, str]:
        return {AMOUNT: f"amount_{self.name}", PRICE: f"price_{self.name}"}

    @property
    def record(self) -> SinkRecord:
        return self.feed.deployment.meta.deliveries.get("shopping", self.name)

    def order(
        self,
        through: int,
        port: int | None = None,
        *,
        request_key: str = "child",
        suspended: str | None = None,
        pause: float = 0.01,
    ) -> Order:
        return Order(
            self.feed.settings,
            self.sink,
            self.targets,
            self.reporting.credentials(port),
            through,
            request_key,
            suspended,
            pause,
        )

    def deliver(self, through: int, port: int | None = None, *, request_key: str = "deliverer") -> list[int]:
        barrier = self.feed.deployment.meta.barriers.get("shopping", through)
        credentials = self.reporting.credentials(port)
        receipts = self.feed.deliver(self.sink, self.targets, credentials, barrier, request_key=request_key)
        return [receipt.barrier.barrier_id for receipt in receipts]

    def check(self, *delivered: int) -> None:
        """The targets are what the last of these barriers was, and everybody says that just these were delivered."""
        last = delivered[-1]
        self.check_rows(last)
        ledger = self.reporting.run(f"SELECT barrier_id, revision FROM {self.ledger} WHERE sink = %s", self.name)
        assert ledger == [(last, 0)]
        assert self.record.position == Position(last, 0)
        history = self.feed.deployment.meta.deliveries.history("shopping", self.name)
        assert sorted(each.barrier_id for each in history) == list(delivered)
        leases = self.feed.deployment.meta.leases.of("shopping")
        assert not [lease for lease in leases if f"{self.name} of" in lease.holder], "also of those who were killed"

    def check_rows(self, barrier: int) -> None:
        for target in self.targets.values():
            assert self.reporting.rows(target) == self.feed.states[barrier], target


def make_pair(feed: Feed, reporting: Reporting, name: str, ledger: str = "") -> Pair:
    """By default it has a ledger of its own, too."""
    pair = Pair(feed, reporting, name, ledger or f"ledger_{name}")
    make_targets(reporting, tuple(pair.targets.values()))
    return pair


def by_stranger(pair: Pair, postgresql: PostgreSQL) -> Pair:
    """The same by another role, once the ledger is there."""
    role = sql.Identifier(STRANGER)
    if not postgresql.run(f"SELECT 1 FROM pg_roles WHERE rolname = '{STRANGER}'"):
        postgresql.run(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, sql.Literal(PASSWORD)))
    grant = sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {}").format(role)
    postgresql.run(grant, database=pair.reporting.url)
    return replace(pair, reporting=pair.reporting.of(STRANGER))


def place(pair: Pair, proxy: Proxy, beginning: str, through: int = 2) -> int:
    """The number of the last statement that begins like that, of a delivery to a sink that lacks one barrier."""
    like = make_pair(pair.feed, pair.reporting, f"like_{uuid4().hex}")
    if through > 1:
        like.deliver(through - 1)
    with proxy.watching() as seen:
        like.deliver(through, proxy.port)
    return max(number for number, text in enumerate(seen.statements) if text.lstrip().startswith(beginning))
