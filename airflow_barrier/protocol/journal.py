"""The journal: what a decided barrier leaves beside the tables, so that the MetaService can be rebuilt from them.

Tags and stamps of the tables say which snapshot belongs to which barrier. What they cannot hold stands here: the
barrier's timestamp, its cuts with the files they used up, and the topology it was opened with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from airflow_barrier.protocol.errors import JournalError
from airflow_barrier.protocol.records import Cut
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
    that decided.
    """

    topology: str
    barrier_id: int
    revision: int
    incarnation: str
    predecessor: int
    timestamp: datetime
    timestamp_origin: str
    run_key: str
    topology_digest: str
    cuts: Mapping[str, Cut]
    tables: Mapping[str, DecidedTable]

    def __str__(self) -> str:
        return f"barrier {self.barrier_id} of {self.topology} ({self.timestamp:%Y-%m-%d %H:%M:%S%z})"

    def dumps(self) -> str:
        return json.dumps(self.to_json(), indent=1, sort_keys=True)

    def to_json(self) -> dict[str, Any]:
        return {"version": _VERSION, **asdict(self), "timestamp": self.timestamp.isoformat()}

    @classmethod
    def loads(cls, text: str) -> JournalEntry:
        """Raises :class:`JournalError` if this is no entry of this version."""
        data = _parsed(text)
        cuts = {
            name: Cut(cut["source"], cut["start"], cut["end"], tuple(cut["items"]))
            for name, cut in data.pop("cuts").items()
        }
        tables = {name: DecidedTable(**table) for name, table in data.pop("tables").items()}
        timestamp = datetime.fromisoformat(data.pop("timestamp"))
        return cls(**data, timestamp=timestamp, cuts=cuts, tables=tables)


@dataclass(frozen=True)
class JournalHead:
    """Which MetaService leads a topology, and the newest barrier and revision that it decided (0: none yet)."""

    incarnation: str
    barrier_id: int
    revision: int = 0

    def dumps(self) -> str:
        return json.dumps({"version": _VERSION, **asdict(self)})

    @classmethod
    def loads(cls, text: str) -> JournalHead:
        """Raises :class:`JournalError`."""
        return cls(**_parsed(text))


@dataclass(frozen=True)
class RevisionEntry:
    """One revision that is COMMITTING or COMMIT, written before its tables are published: ``entries`` are its barriers
    that were COMMIT, as they stand once it is published.
    """

    topology: str
    revision: int
    incarnation: str
    entries: tuple[JournalEntry, ...]

    def dumps(self) -> str:
        data = {"version": _VERSION, **vars(self), "entries": [entry.to_json() for entry in self.entries]}
        # not indented: it is written while nothing else can be published, and Python indents ten times slower
        return json.dumps(data, sort_keys=True)

    @classmethod
    def loads(cls, text: str) -> RevisionEntry:
        """Raises :class:`JournalError` if this is no entry of this version."""
        data = _parsed(text)
        entries = tuple(JournalEntry.loads(json.dumps(entry)) for entry in data.pop("entries"))
        return cls(**data, entries=entries)


@dataclass(frozen=True)
class History:
    """What recovery puts into a MetaService: decided barriers, oldest first, and the topologies they name by digest.

    All up to and including ``published`` (0: none) have their tables published. ``above_attempt``: the highest number
    of an attempt that has left a trace in a table.
    """

    topology: str
    entries: tuple[JournalEntry, ...]
    topologies: Mapping[str, Topology]
    published: int
    above_attempt: int


def _parsed(text: str) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(text)
        found = data.pop("version", None)
    except (ValueError, AttributeError, TypeError) as error:
        raise JournalError(f"journal: expected a JSON object, found text that is none ({error})") from None
    if found != _VERSION:
        raise JournalError(  # safety: journal-version
            f"journal: expected version {_VERSION}, found {found}; another version of airflow-provider-barrier wrote "
            "it: install that one"
        )
    return data
