"""Asset events of tables that are PROCESSED: what other DAGs of a topology run by, instead of waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import Asset

from airflow_barrier.protocol.names import event_key

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_barrier.protocol.records import Barrier


def processed_asset(topology: str, table: str) -> Asset:
    """The asset that gets an event whenever ``table`` is PROCESSED at a barrier, which is the event's partition key.

    A DAG of another team runs once for each barrier that all of its inlets have reached, without a sensor:

        with DAG("averages", schedule=PartitionedAssetTimetable(
            assets=processed_asset("shopping", "shop.a") & processed_asset("shopping", "shop.b"),
        )), BarrierGroup("shopping", member=True, announce_processed=True) as barrier: ...

    What is PROCESSED is not published yet: only jobs of the topology may read it, and
    :func:`~airflow_barrier.operators.commit.table_asset` tells everybody else.

    >>> processed_asset("shopping", "shop.user_item_price").uri
    'barrier://shopping/shop.user_item_price/processed'
    """
    uri = f"barrier://{topology}/{quote(table, safe='')}/processed"
    return Asset(name=uri, uri=uri, group="barrier")


def announce_processed(context: Context, barrier: Barrier, tables: Sequence[str]) -> None:
    """Emit the event of each table with the barrier and revision as partition key (``b3.r0``); again is fine."""
    for table in tables:
        accessor = context["outlet_events"][processed_asset(barrier.topology, table)]
        accessor.extra = {"timestamp": barrier.timestamp.isoformat()}
        accessor.add_partitions(event_key(barrier.barrier_id, barrier.computed_in))
