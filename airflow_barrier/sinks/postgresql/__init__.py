"""Tables of a PostgreSQL database as a sink: the rows of a barrier and the ledger's record are one transaction.

    barrier.deliver("shop.prices", to=PostgreSQLSink("reporting", table="prices"))

The targets are there already; the sink owns the rows that it has delivered in them, and no more: targets are never
dropped, emptied or made anew, so indexes, grants, views and rows of others stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import Rows, SinkDeclaration
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.names import name_fault
from airflow_barrier.sinks.port import Channel
from airflow_barrier.systems.postgresql import CONN_TYPE, dataset_of

#: Bytes of a name: what is longer PostgreSQL cuts, without an error.
_LONGEST = 63


@dataclass(frozen=True)
class PostgreSQLSink:
    """``conn_id``: an Airflow connection of type `postgres`. ``table``: the target, where one table is delivered
    (``schema.table``, or one in ``schema``); where there are several, ``deliver`` maps each to its target and the sink
    needs a ``name``, which is the target's otherwise.

    ``key``: columns that tell rows apart, of all targets, or target -> columns. Default: each target's primary key.
    ``ledger``: the table for the sink's own record, ``schema.table`` or one in ``schema``. It is made if it is not
    there, and may be shared by sinks and topologies.

    >>> PostgreSQLSink("reporting", table="prices").name
    'prices'
    """

    conn_id: str
    table: str | None = None
    name: str = ""
    key: Sequence[str] | Mapping[str, Sequence[str]] | None = None
    schema: str = "public"
    ledger: str = "airflow_barrier_ledger"

    kind: ClassVar[str] = "postgresql"
    conn_type: ClassVar[str] = CONN_TYPE

    location: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not self.name and self.table is not None:
            object.__setattr__(self, "name", self.table)
        if fault := name_fault(self.name):
            raise ConfigurationError(
                f"PostgreSQLSink({self.conn_id!r}): expected a name, found {fault}; give it one, by name=... or by the "
                "target's: table=..."
            )
        for name in filter(None, (self.table, self.ledger)):
            self._parts(name)

    def declare(self, tables: str | Mapping[str, str], rows: Rows, owner: str) -> SinkDeclaration:
        """See :meth:`~airflow_barrier.sinks.port.Sink.declare`."""
        if rows is Rows.TABLE:
            raise ConfigurationError(
                f"sink {self.name}: expected rows='changes' or rows='appends', found 'table'; a PostgreSQL target that "
                "gets the changes holds the whole table at each barrier, for the cost of what has changed. If no "
                "columns tell the table's rows apart, have the job add one that does, or deliver to a FileSink"
            )
        if isinstance(tables, str):
            if self.table is None:
                raise ConfigurationError(
                    f"sink {self.name}: expected the target of {tables}, found none; name it, table='...'"
                )
            tables = {tables: self.table}
        elif self.table is not None:
            raise ConfigurationError(
                f"sink {self.name}: expected the targets in the mapping alone, found table={self.table!r} beside it; "
                "leave that out"
            )
        targets = {table: ".".join(self._parts(target)) for table, target in sorted(tables.items())}
        if len(set(targets.values())) < len(targets) or not targets:
            raise ConfigurationError(
                f"sink {self.name}: expected a target of its own for each table, found {dict(tables)}; a target is "
                "fed from one table"
            )
        keys = self._keys(targets, tables)
        options: dict[str, Any] = {
            "conn_id": self.conn_id,
            "ledger": ".".join(self._parts(self.ledger)),
            "keys": {target: list(key) for target, key in keys.items()},
        }
        return SinkDeclaration(self.name, owner, self.kind, targets, options, rows)

    @classmethod
    def of(cls, declared: SinkDeclaration) -> PostgreSQLSink:
        """The adapter again, from its declaration."""
        options = declared.options
        return cls(options["conn_id"], name=declared.name, key=options["keys"], ledger=options["ledger"])

    def dataset(self, target: str, credentials: Credentials | None) -> tuple[str, str]:
        """See :meth:`~airflow_barrier.sinks.port.Sink.dataset`."""
        return dataset_of(credentials or Credentials(self.conn_id), target)

    def corrections_fault(self, declared: SinkDeclaration) -> str | None:
        """See :meth:`~airflow_barrier.sinks.port.Sink.corrections_fault`."""
        if declared.rows is Rows.APPENDS:
            return "it gets what is appended (rows='appends'), without a key by which a row could be found again"
        return None

    def connect(self, declared: SinkDeclaration, credentials: Credentials | None) -> Channel:
        """See :meth:`~airflow_barrier.sinks.port.Sink.connect`."""
        from airflow_barrier.sinks.postgresql.channel import PostgreSQLChannel

        if credentials is None:
            raise ConfigurationError(f"sink {self.name}: expected connection {self.conn_id}, found none; define it")
        return PostgreSQLChannel(declared, credentials)

    def _keys(self, targets: Mapping[str, str], tables: Mapping[str, str]) -> dict[str, Sequence[str]]:
        if self.key is None:
            return {}
        if isinstance(self.key, str):
            raise ConfigurationError(f"sink {self.name}: key: expected a list of columns, found {self.key!r}")
        if not isinstance(self.key, Mapping):
            return dict.fromkeys(targets.values(), self.key)
        keys = {".".join(self._parts(target)): key for target, key in self.key.items()}
        if unknown := sorted(set(keys) - set(targets.values())):
            raise ConfigurationError(
                f"sink {self.name}: key: expected columns of targets ({', '.join(targets.values())}), found some of "
                f"{', '.join(unknown)}"
            )
        return keys

    def _parts(self, name: str) -> tuple[str, str]:
        """Schema and name of a table, which are taken as they are spelled."""
        parts = name.split(".")
        if len(parts) == 1:
            parts = [self.schema, *parts]
        if len(parts) != 2 or any(not 0 < len(part.encode()) <= _LONGEST or name_fault(part) for part in parts):
            raise ConfigurationError(
                f"sink {self.name}: expected a table as schema.table, each of 1 to {_LONGEST} bytes, found {name!r}"
            )
        return parts[0], parts[1]
