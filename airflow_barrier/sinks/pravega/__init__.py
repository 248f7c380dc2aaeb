"""A stream of Pravega as a sink: the events of a barrier, of all tables, are one transaction.

    barrier.deliver("shop.prices", to=PravegaSink("changes", scope="shop", key=["id"]))

A transaction of Pravega is one stream's. So all tables of a sink go into one stream, whose events say which table they
are of. The stream is there already, and others may write to it, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import Rows, SinkDeclaration
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.names import name_fault
from airflow_barrier.sinks.logs import check_rows, keys_of
from airflow_barrier.sinks.port import Channel
from airflow_barrier.systems import pravega


@dataclass(frozen=True)
class PravegaSink:
    """``stream``: where all tables are delivered, in ``scope``. ``deliver`` maps each table to the label that its
    events bear; a single table's is its name. ``conn_id``: an Airflow connection of type `generic`, whose host and port
    are those of Pravega's controller. ``name``: the sink's, which is the stream's otherwise.

    ``key``: with ``rows="changes"``, the columns that tell rows apart, of all tables, or label -> columns. Events of
    one key keep their order. With ``rows="appends"`` none is needed; without one, events have no order in a barrier.

    ``ledger``: the stream for the sink's own record, in the same scope, of one segment. It is made if it is not there,
    and is one sink's.

    >>> PravegaSink("changes", scope="shop", key=["id"]).ledger
    'changes-ledger'
    """

    stream: str
    scope: str
    conn_id: str = "pravega_default"
    key: Sequence[str] | Mapping[str, Sequence[str]] = ()
    name: str = ""
    ledger: str = ""

    kind: ClassVar[str] = "pravega"
    conn_type: ClassVar[str] = pravega.CONN_TYPE

    location: ClassVar[None] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.stream)
        object.__setattr__(self, "ledger", self.ledger or f"{self.stream}-ledger")
        if fault := name_fault(self.name):
            raise ConfigurationError(f"PravegaSink: expected a name, found {fault}; give it one, by name=...")
        for called in ("scope", "stream", "ledger"):
            if fault := pravega.name_fault(getattr(self, called)):
                raise ConfigurationError(f"sink {self.name}: {called}: {fault}; correct it")
        if self.ledger == self.stream:
            raise ConfigurationError(
                f"sink {self.name}: expected another stream for the ledger, found {self.ledger}; name one: ledger=..."
            )

    def declare(self, tables: str | Mapping[str, str], rows: Rows, owner: str) -> SinkDeclaration:
        """See :meth:`~airflow_barrier.sinks.port.Sink.declare`."""
        check_rows(self.name, rows, "a stream")
        targets = {tables: tables} if isinstance(tables, str) else dict(sorted(tables.items()))
        if not targets or not all(targets.values()) or len({*targets.values()}) < len(targets):
            raise ConfigurationError(
                f"sink {self.name}: expected a label of its own for each table, found {targets}; events of a stream "
                "tell their tables apart by it"
            )
        options: dict[str, Any] = {
            "stream": self.stream,
            "scope": self.scope,
            "conn_id": self.conn_id,
            "ledger": self.ledger,
            "keys": keys_of(self.name, self.key, list(targets.values()), rows, "table"),
        }
        return SinkDeclaration(self.name, owner, self.kind, targets, options, rows)

    @classmethod
    def of(cls, declared: SinkDeclaration) -> PravegaSink:
        """The adapter again, from its declaration."""
        options = dict(declared.options)
        return cls(name=declared.name, key=options.pop("keys"), **options)

    def dataset(self, target: str, credentials: Credentials | None) -> tuple[str, str]:
        """See :meth:`~airflow_barrier.sinks.port.Sink.dataset`."""
        return pravega.dataset(self.scope, self.stream, credentials)

    def corrections_fault(self, declared: SinkDeclaration) -> str | None:
        """See :meth:`~airflow_barrier.sinks.port.Sink.corrections_fault`."""
        if declared.rows is Rows.APPENDS:
            return "it gets what is appended (rows='appends'), and events of a stream do not change"
        return None

    def connect(self, declared: SinkDeclaration, credentials: Credentials | None) -> Channel:
        """See :meth:`~airflow_barrier.sinks.port.Sink.connect`."""
        from airflow_barrier.sinks.pravega.channel import PravegaChannel

        return PravegaChannel(declared, credentials)
