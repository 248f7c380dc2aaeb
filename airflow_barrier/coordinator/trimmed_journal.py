"""The journal of barriers that nobody can read any more: a file a hundred, with what the MetaService keeps of them.

    <warehouse>/_barrier/<topology>/journal/trimmed-<n>.json       the barriers n * 100 to n * 100 + 99

It is written once all of them are trimmed; the files of the single barriers go after it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.journal import entry_uri, read_entry
from airflow_barrier.protocol.errors import JournalError
from airflow_barrier.protocol.journal import JournalEntry, TrimmedEntries
from airflow_barrier.protocol.records import Barrier

log = logging.getLogger(__name__)

#: How many barriers one file tells of.
SPAN = 100
#: Characters of an entry, some 800 landed files: a longer one stays by itself, so that a hundred fit into memory.
_LONGEST = 2**18


def fold(deployment: Deployment, topology: str, trimmed: Collection[int]) -> None:
    """Put each hundred of barriers into one file that ``trimmed`` was the rest of. Again is fine, also beside others:
    all write the same, and nobody deletes before that.
    """
    spans = {barrier_id // SPAN for barrier_id in trimmed}
    # whoever trimmed the rest of the one before may have died over it
    for span in sorted(spans | {span - 1 for span in spans if span}):
        barriers = deployment.meta.expiry.trimmed(topology, span * SPAN, span * SPAN + SPAN - 1)
        if barriers and (folded := _folded(deployment, topology, span) or _fold(deployment, topology, span, barriers)):
            _delete_singles(deployment, folded)


def _fold(deployment: Deployment, topology: str, span: int, barriers: Sequence[Barrier]) -> TrimmedEntries | None:
    """None: somebody else does it, or one of the files is lost."""
    entries = []
    for barrier in barriers:
        try:
            entry = read_entry(deployment, topology, barrier.barrier_id)
        except JournalError as error:
            if (folded := _folded(deployment, topology, span)) is None:
                log.warning(
                    "the journal of barriers %d to %d stays as it is: %s", span * SPAN, barriers[-1].barrier_id, error
                )
            return folded
        kept = {row.table for row in deployment.meta.barriers.progress(topology, barrier.barrier_id)}
        tables = {name: row for name, row in entry.tables.items() if name in kept}
        entry = replace(entry, tables=tables, trimmed=True)
        if len(entry.dumps()) <= _LONGEST:
            entries.append(entry)
    baseline = {row.table: row.snapshot_id for row in deployment.meta.barriers.progress(topology, 0)}
    folded = TrimmedEntries(tuple(entries), baseline)
    deployment.tables.write_text(_uri(deployment, topology, span), folded.dumps())
    log.info(
        "topology %s: the journal of %d trimmed barriers is one file now, up to %s",
        topology,
        len(entries),
        barriers[-1],
    )
    return folded


def _delete_singles(deployment: Deployment, folded: TrimmedEntries) -> None:
    uris = [entry_uri(deployment, entry.topology, entry.barrier_id) for entry in folded.entries]
    if uris and deployment.tables.exists(uris[-1]):  # they go in order: the last one tells whether all have gone
        deployment.tables.delete(uris)


class JournalReader:
    """Reads a topology's entries, the newest first: of each hundred that was put into one file that file is read once.

    ``baseline``: what the files that were read tell of it.
    """

    def __init__(self, deployment: Deployment, topology: str) -> None:
        self._deployment = deployment
        self.topology = topology
        self._span = -1
        self._entries: Mapping[int, JournalEntry] = {}
        self.baseline: dict[str, int | None] = {}

    def entry(self, barrier_id: int) -> JournalEntry:
        """Raises JournalError if it is not there."""
        if barrier_id // SPAN != self._span:
            self._span = barrier_id // SPAN
            folded = _folded(self._deployment, self.topology, self._span)
            self._entries = {entry.barrier_id: entry for entry in folded.entries} if folded is not None else {}
            self.baseline |= folded.baseline if folded is not None else {}
        found = self._entries.get(barrier_id)
        return found if found is not None else read_entry(self._deployment, self.topology, barrier_id)


def _folded(deployment: Deployment, topology: str, span: int) -> TrimmedEntries | None:
    """None: they have a file each."""
    try:
        return TrimmedEntries.loads(deployment.tables.read_text(_uri(deployment, topology, span)))
    except FileNotFoundError:
        return None


def _uri(deployment: Deployment, topology: str, span: int) -> str:
    return deployment.tables.location("_barrier", topology, "journal", f"trimmed-{span}.json")
