"""What tables' documents say, to whoever asks about one table after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

from airflow_barrier.protocol.errors import StagedTableError
from airflow_barrier.protocol.names import Stamp
from airflow_barrier.tables import _attempts, _checks, _traces
from airflow_barrier.tables._expiry import has_steps_since, snapshot_verdicts
from airflow_barrier.tables._metadata import Document
from airflow_barrier.tables.port import SnapshotVerdict, Traces


class Looking(ABC):
    """Implements :class:`~airflow_barrier.tables.port.Look` by a table's document."""

    @abstractmethod
    def _read(self, table: str) -> Document: ...

    def staged(self, table: str, stamp: Stamp, base: int | None) -> int | None:
        return _attempts.staged_head(table, self._read(table), stamp, base)

    def staged_summaries(self, table: str, stamp: Stamp, base: int | None) -> Sequence[Mapping[str, str]]:
        return _attempts.staged_summaries(self._read(table), stamp, base)

    def require_main_without(self, table: str, stamp: Stamp) -> None:
        _checks.require_main_without(table, self._read(table), stamp)

    def check_snapshot(self, table: str, snapshot_id: int, stamp: Stamp, base: int | None) -> None:
        head = self.staged(table, stamp, base)
        if head != snapshot_id:
            raise StagedTableError(  # safety: head-is-what-was-closed
                f"table {table}: expected the head of branch {stamp.branch} to be snapshot {snapshot_id}, as the "
                f"attempt said when it closed, found {'nothing staged' if head is None else f'snapshot {head}'}; "
                "something wrote to the branch after the close: retry the task, which begins a new attempt"
            )

    def snapshot_verdicts(
        self, table: str, window_tag: str | None, dropped: Sequence[str] = (), since: Collection[int] = ()
    ) -> Sequence[SnapshotVerdict]:
        return snapshot_verdicts(self._read(table), window_tag, dropped, since)

    def has_steps_since(self, table: str, snapshot_id: int) -> bool:
        return has_steps_since(self._read(table), snapshot_id)

    def origin(self, table: str) -> Stamp | None:
        return _traces.main_origin(self._read(table))

    def traces(self, table: str, topology: str) -> Traces:
        return _traces.traces_of(self._read(table), topology)


class Seen(Looking):
    """Tables as one look found them."""

    def __init__(self, documents: Mapping[str, Document]) -> None:
        self._seen = documents

    def _read(self, table: str) -> Document:
        return self._seen[table]
