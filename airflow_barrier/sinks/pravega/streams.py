"""A sink's stream and the ledger's: what they are, and what they have to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_barrier.protocol.errors import SinkRefusedError
from airflow_barrier.sinks.pravega.client import Client


@dataclass(frozen=True)
class Stream:
    """``first``: the segments that it began with, which are others when a stream of this name is made anew."""

    scope: str
    name: str
    first: tuple[int, ...]

    def identity_of(self, label: str) -> dict[str, Any]:
        """Return the identity of a table's part of the stream."""
        return {"label": label, "first_segments": list(self.first), "part_of": f"{self.scope}/{self.name}"}


def find_stream(client: Client, scope: str, name: str) -> Stream:
    """The target. Raises SinkRefusedError for one that is not there, or takes nothing any more."""
    found = client.ask("described", scope, name)
    if found is None:
        raise SinkRefusedError(
            f"{client.what}: expected the stream {name} in scope {scope} at {client.address}, found none; create it, "
            "with the segments that it is to have"
        )
    if not found["now"]:
        raise SinkRefusedError(
            f"{client.what}: expected that the stream {name} in scope {scope} takes events, found that it is sealed; "
            "name another one"
        )
    return Stream(scope, name, tuple(found["first"]))


def find_ledger(client: Client, scope: str, name: str) -> bool:
    """Return True if the ledger's stream is there. Raises SinkRefusedError if it could lose an entry, or its order."""
    found = client.ask("described", scope, name)
    if found is None:
        return False
    odd = []
    if len(found["first"]) != 1 or found["now"] != found["first"]:
        odd.append(f"segments {found['now']} after {found['first']}")
    if found["scales"]:
        odd.append("a policy by which it scales")
    if found["expires"]:
        odd.append("a policy by which events expire")
    if odd:
        raise SinkRefusedError(
            f"{client.what}: expected that the ledger {name} in scope {scope} keeps its entries and their order, in "
            f"one segment that is neither scaled nor truncated by a policy, found {', '.join(odd)}; name another "
            "stream for the ledger, or none, which is made then: PravegaSink(..., ledger=...)"
        )
    return True
