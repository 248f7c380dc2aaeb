"""Snapshots go out of real tables without Spark."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.shop import Shop


class Takes:
    """Takes snapshots out by pyiceberg, which leaves their files; and remembers what it was told."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.told: dict[str, list[int]] = {}

    def __call__(self, table: str, snapshot_ids: Sequence[int]) -> str:
        self.told[table] = list(snapshot_ids)
        self.shop.deployment.tables.load(table).maintenance.expire_snapshots().by_ids(list(snapshot_ids)).commit()
        return "no files"
