"""What a barrier's way into files is made of, wherever they lie: columns that fit, rows in files, whose a ledger is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, Protocol, TypeVar

from airflow_barrier.protocol.deliveries import (
    CHANGE,
    DELETE,
    INSERT,
    UPDATE,
    Counts,
    Remedy,
    Rows,
    SinkDeclaration,
)
from airflow_barrier.protocol.errors import FencedDelivererError, LedgerError, SinkRefusedError
from airflow_barrier.sinks.files.formats import column_fault, encoder_of
from airflow_barrier.sinks.ledger import FORMAT, Deliverer, LedgerRecord, Words, command, opened
from airflow_barrier.sinks.port import Delivery, RowBatches

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

#: Rows are written in portions of so many, or of so many bytes, whatever batches they come in.
_PORTION_ROWS, _PORTION_BYTES = 65_536, 64 * 1024**2
_FOREIGN = {
    "format": "run the version of airflow-provider-barrier that wrote it",
    "topology": "deliver to another folder",
    "sink": "deliver to another folder",
    "incarnation": "if the MetaService was recovered and goes on with the sink: {adopt} If it is a clone of one that "
    "still delivers, deliver to another folder",
    "url": "if the folder was moved: {adopt} If it was copied, empty it and load the sink anew: {redeliver}",
}


class Folder(Protocol):
    """The sink's folder as its author declared it: see :class:`~airflow_barrier.sinks.files.FileSink`."""

    @property
    def url(self) -> str: ...

    @property
    def identity(self) -> str: ...

    @property
    def format(self) -> str: ...

    @property
    def roll_bytes(self) -> int: ...

    @property
    def success_file(self) -> bool: ...


class Writing(Protocol):
    """A place to which files can be written. Paths are relative to the sink's folder."""

    def create(self, path: str) -> AbstractContextManager[BinaryIO]: ...

    def close(self) -> None: ...


_Store = TypeVar("_Store", bound=Writing)


class FileSteps(Generic[_Store]):
    """A channel of what was ``declared``, but for the ledger and the step that commits."""

    def __init__(self, sink: Folder, declared: SinkDeclaration, connect: Callable[[], _Store]) -> None:
        self._sink = sink
        self._declared = declared
        self._connect = connect
        self._record: LedgerRecord | None = None

    def __enter__(self) -> Self:
        self._store = self._connect()
        return self

    def __exit__(self, *error: object) -> None:
        self._store.close()

    def __str__(self) -> str:
        return f"sink {self._declared.name}"

    # --- before a first barrier -------------------------------------------------------------------

    def validate(self, schemas: Mapping[str, pa.Schema]) -> Mapping[str, tuple[str, ...]]:
        of_target: dict[str, Sequence[str]] = self._declared.options["keys"]
        keys = {table: tuple(of_target.get(target, ())) for table, target in self._declared.targets.items()}
        for table, schema in schemas.items():
            if missing := sorted(set(keys[table]) - set(schema.names)):
                raise SinkRefusedError(
                    f"{self}: table {table}: expected the columns of its key, found no {', '.join(missing)} among "
                    f"{', '.join(schema.names)}; correct key=…"
                )
            for column in schema:
                fault = column_fault(self._sink.format, column)
                if fault:
                    raise SinkRefusedError(
                        f"{self}: table {table}, column {column.name!a}: {fault}; deliver a table without it"
                    )
        self._try_out()
        return {table: keys[table] for table in schemas}

    def _try_out(self) -> None:
        """See that the store does what a delivery needs, and leave nothing there."""
        raise NotImplementedError

    # --- the ledger -------------------------------------------------------------------------------

    def _owner(self, who: Deliverer) -> dict[str, Any]:
        """Return the entries by which a ledger says whose it is."""
        return {
            "format": FORMAT,
            "topology": who.topology,
            "incarnation": who.incarnation,
            "sink": who.sink,
            "url": self._sink.identity,
        }

    def _check_owner(
        self, place: str, found: Mapping[str, Any], owner: Mapping[str, Any], remedy: Remedy | None
    ) -> None:
        adoptable = ("incarnation", "url") if remedy is not None else ()
        if other := next((name for name in owner if found.get(name) != owner[name] and name not in adoptable), None):
            who = Deliverer(owner["topology"], owner["incarnation"], owner["sink"], "")
            said = _FOREIGN[other].format(adopt=command("adopt", who), redeliver=command("redeliver", who))
            raise LedgerError(  # safety: ledger-is-ours
                f"{self}: expected {self._at(place)} to say {other} {owner[other]!r}, found "
                f"{found.get(other)!r} (sink {found.get('sink')} of {found.get('topology')}); {said}"
            )

    def _empty_record(self, who: Deliverer) -> LedgerRecord:
        identities: dict[str, Mapping[str, Any]] = {target: {} for target in self._declared.targets.values()}
        return LedgerRecord.of(who, self._declared, self._sink.identity, identities, format=self._sink.format)

    def _go_on_from(self, who: Deliverer, said: Mapping[str, Any] | None, remedy: Remedy | None) -> LedgerRecord:
        """``said``: what the ledger says of the barrier that was delivered last. Raises LedgerError."""
        words = Words(
            ledger=f"ledger in {self._sink.url}",
            place="folder",
            target="target",
            another="deliver to another folder",
            copied="If the folder was moved",
            anew=f"To have it loaded anew, move away what is in it: {command('redeliver', who)}",
        )
        seen = None if said is None else LedgerRecord.from_json(said)
        return opened(who, words, seen, self._empty_record(who), remedy)

    def _fenced(self, number: int, who: Deliverer) -> FencedDelivererError:
        return FencedDelivererError(
            f"{self}: expected deliverer {number} ({who.request_key}) to be the newest, found that "
            "another one has opened the sink since; what is not in the ledger is delivered by that one"
        )

    # --- a barrier --------------------------------------------------------------------------------

    def _said_of(
        self, record: LedgerRecord, who: Deliverer, number: int, delivery: Delivery, files: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the ledger's entry of a barrier. ``files``: target -> its files."""
        return {
            **record.to_json(),
            "barrier_id": delivery.barrier_id,
            "revision": delivery.revision,
            "timestamp": delivery.timestamp.isoformat(),
            "after": str(delivery.after) if delivery.after else None,
            "rows": delivery.rows.value,
            "whole": sorted(self._declared.targets[table] for table in delivery.whole),
            "deliverer": number,
            "request_key": who.request_key,
            "files": files,
        }

    def _write_rows(
        self, rows: RowBatches, kind: Rows, folder: str, end: str = ""
    ) -> tuple[list[dict[str, Any]], Counts]:
        """Write the rows of a table into files of ``folder``, whose names end with ``end`` and the format."""
        files: list[dict[str, Any]] = []
        counts = Counts()
        portions = _portions(rows)
        if kind is Rows.CHANGES:
            portions = map(_with_change, portions)
        portion: pa.Table | None = next(portions)
        while portion is not None:
            name, written = f"part-{len(files):05}{end}.{self._sink.format}", 0
            with self._store.create(f"{folder}/{name}") as stream:
                with encoder_of(self._sink.format, stream, portion.schema) as encoder:
                    while portion is not None and (not written or stream.tell() < self._sink.roll_bytes):
                        encoder.write(portion)
                        written, counts = written + portion.num_rows, counts + _counted(portion)
                        portion = next(portions, None)
                files.append({"name": name, "rows": written, "bytes": stream.tell()})
        return files, counts

    def _at(self, path: str) -> str:
        return f"{self._sink.url.rstrip('/')}/{path}"


def _portions(batches: RowBatches) -> Iterator[pa.Table]:
    """The same portions whatever batches the rows come in; at least one, which may be without rows."""
    import pyarrow as pa

    # A row that was deleted has no values in columns that are required.
    schema = pa.schema([pa.field(column.name, column.type) for column in batches.schema])
    held: list[pa.RecordBatch] = []
    rows = size = 0
    whole = True
    for each in batches:
        batch = each.select(schema.names).cast(schema)
        while batch.num_rows:
            taken = batch.slice(0, _PORTION_ROWS - rows)
            batch = batch.slice(taken.num_rows)
            held.append(taken)
            rows, size, whole = rows + taken.num_rows, size + taken.nbytes, False
            if rows == _PORTION_ROWS or size >= _PORTION_BYTES:
                yield pa.Table.from_batches(held, schema).combine_chunks()
                held, rows, size = [], 0, 0
    if held or whole:
        yield pa.Table.from_batches(held, schema).combine_chunks()


def _with_change(rows: pa.Table) -> pa.Table:
    """A table that is delivered whole says so like one whose rows were all inserted."""
    import pyarrow as pa

    if CHANGE in rows.column_names:
        return rows
    return rows.add_column(0, pa.field(CHANGE, pa.string()), pa.repeat(INSERT, rows.num_rows))


def _counted(rows: pa.Table) -> Counts:
    if CHANGE not in rows.column_names:
        return Counts(inserted=rows.num_rows)
    from pyarrow import compute as pc

    found = {each["values"]: each["counts"] for each in pc.value_counts(rows[CHANGE]).to_pylist()}
    return Counts(found.get(INSERT, 0), found.get(UPDATE, 0), found.get(DELETE, 0))
