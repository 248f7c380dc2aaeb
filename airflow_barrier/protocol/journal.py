"""The journal: what a decided barrier leaves beside the tables, so that the MetaService can be rebuilt from them.

Tags and stamps of the tables say which snapshot belongs to which barrier. What they cannot hold stands here: the
barrier's timestamp, its cuts with the files they used up, and the topology it was opened with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar

from airflow_barrier.protocol.codec import decode, encode
from airflow_barrier.protocol.errors import JournalError
from airflow_barrier.protocol.records import BarrierKind, Cut, RunRef
from airflow_barrier.protocol.revisions import Revision
from airflow_barrier.protocol.topology import Topology

_VERSION = 1


@dataclass(frozen=True)
class DecidedTable:
    """One table's row of the map. ``metadata``: where its metadata document lay when the barrier was decided."""

    job: str | None
    snapshot_id: int | None
    expected_snapshot: int | None
    carried_from: int | None
    metadata: str


@dataclass(frozen=True)
class JournalEntry:
    """One barrier that is COMMITTING or COMMIT, written before its tables are published.

    ``topology_digest`` names the file with the topology that it was opened with; ``incarnation`` is the MetaService
    that decided. ``trimmed``: nobody can read the barrier any more, and of its ``tables`` there is what the MetaService
    keeps too.
    """

    version: ClassVar[int] = _VERSION
    topology: str
    barrier_id: int
    computed_in: int
    incarnation: str
    predecessor: int
    timestamp: datetime
    timestamp_from: str
    kind: BarrierKind
    run: RunRef
    topology_digest: str
    cuts: Mapping[str, Cut]
    tables: Mapping[str, DecidedTable]
    trimmed: bool = False

    def __str__(self) -> str:
        return f"barrier {self.barrier_id} of {self.topology} ({self.timestamp:%Y-%m-%d %H:%M:%S%z})"

    @property
    def is_maintenance(self) -> bool:
        return self.kind is BarrierKind.MAINTENANCE

    def dumps(self) -> str:
        return json.dumps(encode(self), indent=1, sort_keys=True)

    @classmethod
    def loads(cls, text: str) -> JournalEntry:
        """Raises :class:`JournalError` if this is no entry of this version."""
        return decode(cls, _parsed(text))


@dataclass(frozen=True)
class TrimmedEntries:
    """The entries of neighbouring barriers that are all trimmed, oldest first, in one file.

    ``baseline``: what tables were at before their first barrier, which no entry tells any more.
    """

    version: ClassVar[int] = _VERSION
    entries: tuple[JournalEntry, ...]
    baseline: Mapping[str, int | None]

    def dumps(self) -> str:
        return json.dumps(encode(self), sort_keys=True)

    @classmethod
    def loads(cls, text: str) -> TrimmedEntries:
        """Raises :class:`JournalError`."""
        return decode(cls, _parsed(text))


@dataclass(frozen=True)
class JournalHead:
    """The MetaService that leads a topology, and the newest barrier and revision that it decided (0: none yet)."""

    version: ClassVar[int] = _VERSION
    incarnation: str
    barrier_id: int
    revision: int = 0

    def dumps(self) -> str:
        return json.dumps(encode(self))

    @classmethod
    def loads(cls, text: str) -> JournalHead:
        """Raises :class:`JournalError`."""
        return decode(cls, _parsed(text))


@dataclass(frozen=True)
class RevisionEntry:
    """One revision that is COMMITTING or COMMIT, written before its tables are published: all that a publish needs.

    ``revision`` as it was decided, with what `main` of each table is expected to be at; ``bases``: what each of its
    tables was at where it began (None: nothing). ``entries`` are its barriers that were COMMIT, oldest first, as they
    stand once it is published; ``replaced`` the same barriers as they stood before, with the revision's tables only.
    ``predecessor``: the revision that was published before it (0: none); those between were given up.
    """

    version: ClassVar[int] = _VERSION
    revision: Revision
    incarnation: str
    predecessor: int
    bases: Mapping[str, int | None]
    entries: tuple[JournalEntry, ...]
    replaced: tuple[JournalEntry, ...]

    def __str__(self) -> str:
        return str(self.revision)

    @property
    def number(self) -> int:
        return self.revision.revision

    @property
    def head(self) -> JournalEntry:
        """The newest barrier that was COMMIT, to whose snapshots `main` goes."""
        return self.entries[-1]

    def at(self, barrier_id: int) -> JournalEntry | None:
        """A barrier as it stands once the revision is published; None if it is none of those that were COMMIT."""
        return next((entry for entry in self.entries if entry.barrier_id == barrier_id), None)

    def before(self, barrier_id: int) -> JournalEntry | None:
        """The same barrier as it stood before, whole, and without what joins by the revision."""
        revised = self.at(barrier_id)
        old = next((entry for entry in self.replaced if entry.barrier_id == barrier_id), None)
        if revised is None or old is None:
            return None
        others = {name: table for name, table in revised.tables.items() if name not in self.revision.tables}
        return replace(old, tables={**others, **old.tables})

    def dumps(self) -> str:
        # not indented: it is written while nothing else can be published, and Python indents ten times slower
        return json.dumps(encode(self), sort_keys=True)

    @classmethod
    def loads(cls, text: str) -> RevisionEntry:
        """Raises :class:`JournalError` if this is no entry of this version."""
        return decode(cls, _parsed(text))


@dataclass(frozen=True)
class History:
    """Recovery's input to a MetaService: decided barriers, oldest first, and the topologies they name by digest.

    All up to and including ``published`` (0: none) have their tables published. ``above_attempt``: the highest number
    of an attempt that has left a trace in a table. ``revisions``: those that the MetaService lacks, oldest first, each
    published; ``entries`` are as they stood before these. ``newest_revision``: the highest number of one that has left
    a trace, whatever became of it (0: none). ``baseline``: what tables were at before their first barrier, if that is
    trimmed.
    """

    topology: str
    entries: tuple[JournalEntry, ...]
    topologies: Mapping[str, Topology]
    published: int
    above_attempt: int
    revisions: tuple[RevisionEntry, ...] = ()
    newest_revision: int = 0
    baseline: Mapping[str, int | None] = field(default_factory=dict)


def _parsed(text: str) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(text)
        found = data.get("version")
    except (ValueError, AttributeError) as error:
        raise JournalError(f"journal: expected a JSON object, found text that is none ({error})") from None
    if found != _VERSION:
        raise JournalError(  # safety: journal-version
            f"journal: expected version {_VERSION}, found {found}; another version of airflow-provider-barrier wrote "
            "it: install that one"
        )
    return data
