"""What the steps of one barrier ask PostgreSQL: statements, and how often they wait for an answer, by step.

The counts do not depend on the host. A landing that exceeds one of these numbers fails; one that lowers it writes the
lower number here. MetaService and catalog share a database, and both are counted. The steps are those of the second
barrier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from airflow_barrier.coordinator.deployment import Deployment
from tests.api.live import statements
from tests.support.deployments import settings_on
from tests.support.postgresql import PostgreSQL
from tests.support.proxy import Proxy, settings_through
from tests.support.reporting import report
from tests.support.way import create_tables, is_on_the_way, take_barrier

_R = TypeVar("_R")


@dataclass(frozen=True)
class Cost:
    """``trips``: round trips to the server. ``statements``: those that SQLAlchemy was asked to execute."""

    trips: int
    statements: int


#: At most, for the opening, the dearest job's step and close, and the commit; for one way all together.
BUDGET = {
    "opening": Cost(33, 29),
    "step": Cost(24, 21),
    "close": Cost(13, 12),
    "commit": Cost(57, 50),
    "way of three jobs": Cost(199, 176),
}


def test_a_barrier_asks_the_database_no_more_than_its_budget(tmp_path: Path, postgresql: PostgreSQL) -> None:
    with settings_on("postgresql", tmp_path, postgresql) as settings, Proxy(postgresql.port) as proxy:
        deployment = Deployment.connect(settings_through(proxy, settings))
        try:
            create_tables(deployment)
            _costs(deployment, proxy, 1)
            found = _costs(deployment, proxy, 2)
        finally:
            deployment.close()
    for step, cost in found.items():
        report(f"budget, {step}: {cost.trips} round trips, {cost.statements} statements")
    over = {step: (found[step], most) for step, most in BUDGET.items() if not _is_within(found[step], most)}
    assert not over


def _is_within(cost: Cost, most: Cost) -> bool:
    return cost.trips <= most.trips and cost.statements <= most.statements


def _costs(deployment: Deployment, proxy: Proxy, day: int) -> dict[str, Cost]:
    """Take a day's barrier, and return what its steps cost."""
    costs: dict[str, list[Cost]] = defaultdict(list)
    way: list[Cost] = []

    def measure(step: str, work: Callable[[], _R], job: str | None = None) -> _R:
        with proxy.watching() as seen, statements() as said:
            done = work()
        costs[step].append(Cost(seen.trips, len(said)))
        way.extend(costs[step][-1:] if is_on_the_way(job) else [])
        return done

    take_barrier(deployment, day, measure)
    dearest = {
        step: Cost(max(each.trips for each in found), max(each.statements for each in found))
        for step, found in costs.items()
    }
    whole = Cost(sum(each.trips for each in way), sum(each.statements for each in way))
    return {**dearest, "way of three jobs": whole}
