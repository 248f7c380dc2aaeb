"""A shop whose DAG gets the job `price` while it is running; the job waits for its history."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from airflow_barrier.protocol.topology import Fragment, Job
from tests.crash.shopping import TASKS, Shop
from tests.revising.world import RevisedShop

#: The run of a day without the task of the job that waits, which does nothing.
DAY = [task for task in TASKS if task != "price"]


@dataclass(frozen=True)
class GrowingShop(Shop):
    """``jobs`` are those that its DAG declares."""

    jobs: dict[str, Job] = field(default_factory=dict)

    @property
    def fragment(self) -> Fragment:
        return Fragment(self.name, "shopping_dag", tuple(self.jobs.values()))

    def declare(self, *names: str, **changed: Any) -> None:
        every = {job.name: job for job in super().fragment.jobs}
        self.jobs.clear()
        self.jobs.update({name: every[name] for name in names})
        if "price" in names:
            price = every["price"]
            self.jobs["price"] = replace(price, start_from=dict.fromkeys(price.inlets, "history"), **changed)


def declare(shop: RevisedShop, **changed: Any) -> None:
    """The DAG is deployed with `price`, and its next run has started."""
    growing = shop.shop
    assert isinstance(growing, GrowingShop)
    growing.declare("load", "amount", "price", **changed)
    meta, fragment = shop.deployment.meta, growing.fragment
    meta.topologies.register(fragment.topology, fragment.owner, fragment.jobs, "test")
