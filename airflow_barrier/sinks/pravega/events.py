"""Rows as events of a stream: JSON that says of itself what it is, since Pravega's events have no key and no header."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_barrier.protocol.deliveries import DELETE
from airflow_barrier.protocol.errors import RowRefusedError
from airflow_barrier.sinks.json_rows import JSON, beginnings, named, rows_of
from airflow_barrier.sinks.port import Delivery

#: Bytes of an event that Pravega's Java writers take, with its header. Its Python client would send more.
LARGEST = 8 * 1024**2
_HEADER = 8
#: An event with its routing key. Events of one routing key keep their order.
Event = tuple[str, bytes]


def events_of(
    what: str, topology: str, table: str, label: str, key: Sequence[str], delivery: Delivery
) -> Iterator[tuple[str, Event]]:
    """Each row's event after what became of the row. Raises RowRefusedError for one that is too large, or not JSON."""
    said_first = beginnings(topology, table, label, delivery)
    where = f"{what}: expected events for every row of {delivery.position} of {table}"
    for n, (op, row) in enumerate(rows_of(where, delivery.tables[table], key), 1):
        of_key = {column: row[column] for column in key}
        event = b'%b%d,"row":%b}' % (said_first[op], n, JSON.encode(of_key if op == DELETE else row))
        if _HEADER + len(event) > LARGEST:
            raise RowRefusedError(  # safety: row-fits-event
                f"{where}, found one of {_HEADER + len(event)} bytes, in the row with {named(key, row)}, where an "
                f"event has at most {LARGEST}. Nothing of this barrier was delivered. Correct the row by a revision; "
                "then clear the task"
            )
        routing_key = JSON.encode([label, *of_key.values()] if key else [label, n])
        yield op, (routing_key.decode(), event)
