"""A Pravega whose servers are killed keeps each event, once and in order: what proofs on such a cluster rest on."""

from __future__ import annotations

from collections import defaultdict

import pytest

from airflow_barrier.protocol.errors import SourceUnavailableError
from airflow_barrier.systems.pravega import Client
from tests.support.pravega import SCOPE, Cluster
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.drawn("large ones"),
    pytest.mark.touches("systems/pravega.py", "systems/pravega_process.py"),
]
_EVENTS, _KEYS = 10_000, 50


def test_a_cluster_whose_servers_are_killed_has_each_event_once_and_in_order(pravega_cluster: Cluster) -> None:
    stream = pravega_cluster.stream(segments=4)
    _write(pravega_cluster, stream, 0)
    pravega_cluster.kill("store")
    pravega_cluster.start("store")
    _write(pravega_cluster, stream, _EVENTS)
    pravega_cluster.kill("controller")
    pravega_cluster.start("controller")

    read = _read(pravega_cluster, stream, 2 * _EVENTS)

    assert read == {f"key-{key}": list(range(key, 2 * _EVENTS, _KEYS)) for key in range(_KEYS)}


def _write(cluster: Cluster, stream: str, first: int) -> None:
    numbers = range(first, first + _EVENTS)
    cluster.write(stream, [(key := f"key-{number % _KEYS}", f"{key} {number}".encode()) for number in numbers])


def _read(cluster: Cluster, stream: str, expected: int) -> dict[str, list[int]]:
    """Return the numbers of each key, in the order in which a reader has them, until it is where the stream ends."""
    found: dict[str, list[int]] = defaultdict(list)
    end = cluster.tail(stream)
    with Client("a test", cluster.credentials, SourceUnavailableError) as client:
        client.ask("begin", SCOPE, stream, "start", "readers")

        def is_at_the_end() -> bool:
            _, _, values, positions = client.ask("slice")
            for value in values:
                key, number = value.decode().split()
                found[key].append(int(number))
            return bool(positions == end)

        wait_for(f"{expected} events", is_at_the_end)
    return dict(found)
