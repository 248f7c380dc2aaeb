"""A Pravega cluster as a deliverer asks it."""

from __future__ import annotations

from typing import Any

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import SinkUnavailableError
from airflow_barrier.systems import pravega

#: States of a transaction, as Pravega's controller numbers them.
UNKNOWN, OPEN, COMMITTED, ABORTED = 0, 1, 3, 5


class Client(pravega.Client):
    """A cluster as ``credentials`` enter it, for who delivers.
    :class:`~airflow_barrier.sinks.pravega.process.Delivering` has the requests.
    """

    module = "airflow_barrier.sinks.pravega.process"

    def __init__(self, what: str, credentials: Credentials | None) -> None:
        super().__init__(what, credentials, SinkUnavailableError)

    def change(self, request: str, *arguments: Any) -> Any:
        """Every request that may change something at the cluster goes through here, so that it can be watched."""
        return self.ask(request, *arguments)
