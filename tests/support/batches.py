"""Batches over the shopping topology, whose epochs hands write."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from airflow_barrier.coordinator.batching import Batch
from airflow_barrier.coordinator.staging import Asking, Ready
from airflow_barrier.protocol.records import Barrier
from tests.support.shop import Shop

Rows = list[dict[str, int]]


def leader_of(barrier: Barrier, job: str) -> Asking:
    """The task of that job at that barrier, as :meth:`Shop.begin` asks with."""
    return Asking(f"shopping_dag/{barrier.barrier_id}/{job}", "g0", "leader", owner="shopping_dag")


def batch_of(shop: Shop, barrier: Barrier, job: str, limit: int) -> Batch:
    return Batch(shop.deployment, leader_of(barrier, job), shop.begin(barrier, job), limit)


def run(shop: Shop, batch: Batch, rows: Mapping[int, Rows], before: Callable[[Ready], None] = lambda _: None) -> None:
    """All of a batch, as a session does it."""
    ready: Ready | None = batch.first
    while ready is not None:
        before(ready)
        batch.close(shop.write(ready, rows[ready.attempt.barrier_id]))
        ready = batch.following()
