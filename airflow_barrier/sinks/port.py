"""What the protocol asks of a system that tables are delivered to.

The lake is the first phase: a barrier that is COMMIT is durable, and can be read again as often as it takes. So a sink
needs to do one thing: take the rows of a barrier *together with a record in its own ledger*, both or neither. Whether
something was delivered is then asked of the ledger alone, after every crash and every lost reply.

A :class:`Sink` is a frozen dataclass with plain settings. It is constructed while a DAG is parsed, so its module
imports neither its system's client nor pyarrow at the top, and its constructor touches no network. :meth:`Sink.connect`
gives the :class:`Channel` by which one process delivers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Protocol

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import Counts, Position, Remedy, Rows, SinkDeclaration
from airflow_barrier.sinks.ledger import Deliverer, LedgerRecord

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self


class RowBatches(Protocol):
    """Rows in Arrow batches, of which one at a time need be in memory. They can be read again from the beginning."""

    @property
    def schema(self) -> pa.Schema: ...

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...


@dataclass(frozen=True)
class Delivery:
    """One step: what tables hold at a barrier, or what changed in each since its target's position.

    ``after``: the position that the ledger has to say before (None: that nothing was delivered yet). ``timestamp``
    (UTC) is the barrier's. ``whole``: the tables whose rows are all that they hold, since their targets have received
    nothing yet, or get whole tables. ``tables``: table -> its rows, in the table's columns; with changes, the column
    ``_change`` before them (``insert``, ``update``, ``delete``) and at most one row of each key, of which a ``delete``
    has the key only, the rest being NULL.

    ``former``: the targets are to be compared with the tables, whose rows are whole then, and what differs is changed.
    It has the keys of the rows that were delivered, some of them several times; of these, those go that the table has
    no more. Rows of other keys stay, and None means that nothing is compared. ``after`` may be this very barrier then.
    """

    barrier_id: int
    revision: int
    timestamp: datetime
    after: Position | None
    rows: Rows
    whole: Collection[str]
    tables: Mapping[str, RowBatches]
    former: Mapping[str, RowBatches] | None = None

    @property
    def position(self) -> Position:
        return Position(self.barrier_id, self.revision)


class Channel(Protocol):
    """A connection to the sink, of one process. A context manager: leaving it closes the connection.

    Every method raises SinkUnavailableError (retryable) when the sink does not answer. After that the outcome of
    :meth:`deliver` is not known: close the channel, and ask the ledger by a new one.
    """

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def validate(self, schemas: Mapping[str, pa.Schema]) -> Mapping[str, tuple[str, ...]]:
        """See that the sink can take these tables, and change nothing that stays: address, rights, targets, columns,
        types and keys. Of declared tables that are not among them it sees what there is to see without their schemas.

        Returns table -> the columns of its key (none: it needs none). Raises SinkRefusedError naming what is wrong.
        """
        ...

    def look(self, deliverer: Deliverer) -> LedgerRecord:
        """Return what the ledger says was delivered. Supersedes nobody, and changes nothing.

        Raises LedgerError if the ledger is another's, or says that targets were delivered otherwise than declared.
        """
        ...

    def open(self, deliverer: Deliverer, remedy: Remedy | None = None) -> LedgerRecord:
        """Become the only one who can deliver. The previous deliverer is fenced: it can change nothing any more.

        Returns what the ledger says was delivered, by target, and drops what dead deliverers left. Raises LedgerError,
        and supersedes nobody, where :func:`~airflow_barrier.sinks.ledger.opened` or
        :func:`~airflow_barrier.sinks.ledger.check_others` does. ``remedy``: what a person has decided on.
        """
        ...

    def deliver(self, delivery: Delivery) -> Mapping[str, Counts]:
        """Apply the rows of all tables and write the ledger's record, both or neither; returns what each table's
        target was changed by.

        Raises FencedDelivererError (retryable) if somebody opened the sink since, RowRefusedError naming the key of a
        row that the sink does not take, and TargetChangedError if others changed rows that were delivered.
        """
        ...


class Sink(Protocol):
    """A system outside the lake, as the author of a DAG names it."""

    kind: ClassVar[str]

    @property
    def name(self) -> str:
        """Unique within a topology."""
        ...

    @property
    def location(self) -> str | None:
        """The folder that workers write to, which the connection's ``source_roots`` have to allow; None: another
        system, whose own rights decide.
        """
        ...

    @property
    def conn_id(self) -> str | None:
        """The Airflow connection by which it is reached; None: it needs none."""
        ...

    @property
    def conn_type(self) -> str:
        """The connection's type; not asked for where there is none."""
        ...

    def declare(self, tables: str | Mapping[str, str], rows: Rows, owner: str) -> SinkDeclaration:
        """The declaration that is registered with the topology. ``tables``: one table of the topology, or table ->
        what it is called in the sink. Raises ConfigurationError for what this kind of sink cannot do.
        """
        ...

    @classmethod
    def of(cls, declared: SinkDeclaration) -> Sink:
        """The adapter again, from its declaration."""
        ...

    def dataset(self, target: str, credentials: Credentials | None) -> tuple[str, str]:
        """Namespace and name of a target in OpenLineage, as :mod:`~airflow_barrier.protocol.datasets` has them."""
        ...

    def corrections_fault(self, declared: SinkDeclaration) -> str | None:
        """Return why a revision cannot correct what was delivered there; None: it can."""
        ...

    def connect(self, declared: SinkDeclaration, credentials: Credentials | None) -> Channel:
        """A way to deliver what was ``declared``. Connects when the channel is entered."""
        ...
