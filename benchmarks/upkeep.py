"""What a topology keeps that is compacted and expired as it goes along, and what a barrier costs then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from sqlalchemy import create_engine, func, select

from airflow_barrier.coordinator.compacting import Compactor, compact, open_compaction
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.expiring import expire
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.metaservice import schema
from airflow_barrier.protocol.records import Barrier as BarrierRecord
from airflow_barrier.protocol.retention import Retention
from benchmarks.report import Measured
from benchmarks.retained import TABLES, TOPOLOGY, Barrier
from tests.support.replacing import replace_files
from tests.support.runs import run_of

_LENGTHS = (100, 400, 1_000)
#: Barriers whose median stands for a length; of as many from one upkeep to the next.
_AROUND = _EVERY = 10
_KEEP = 31


def measure(folder: Path, *, quick: bool) -> list[Measured]:
    lengths, around, keep = ((4, 8), 2, 2) if quick else (_LENGTHS, _AROUND, _KEEP)
    deployment = Deployment.connect(Settings.embedded(str(folder)))
    sizes: list[dict[str, int]] = []
    costs: list[float] = []
    try:
        maintained = Maintained(deployment, every=around, keep=keep)
        for length in lengths:
            barriers = maintained.run(length)
            costs.append(1000 * median(sum(one.seconds.values()) for one in barriers[-around:]))
            sizes.append(maintained.sizes())
    finally:
        deployment.close()
    rows = [["a barrier, milliseconds", *(f"{cost:.1f}" for cost in costs)]]
    rows += [[what, *(f"{one.get(what, 0):,}" for one in sizes)] for what in sizes[-1]]
    return [
        Measured(
            "What is kept of a topology that is compacted and expired",
            f"As above, with a compaction and then an expiry after every {around}th barrier (`keep={keep}`). The "
            "compaction, which is a barrier more, puts the same files into a snapshot of its own, and the expiry takes "
            "snapshots out by pyiceberg: no Spark here either. Looked at right after them. Tables of the MetaService "
            "that have no rows are left out.",
            ["what a table keeps, and the MetaService", *(f"after {length:,}" for length in lengths)],
            rows,
        )
    ]


class Maintained:
    """A topology that is compacted and expired after every so many barriers."""

    def __init__(self, deployment: Deployment, *, every: int, keep: int) -> None:
        self.deployment = deployment
        self.every = every
        self.keep = keep
        self.number = 0
        Barrier.make_tables(deployment)

    def run(self, until: int) -> list[Barrier]:
        """All barriers up to that number."""
        barriers = []
        while self.number < until:
            self.number += 1
            barriers.append(Barrier(self.deployment, self.number))
            if self.number % self.every == 0:
                self._compact()
                expire(self.deployment, TOPOLOGY, Retention(self.keep), self._take_out, actor="benchmark")
        return barriers

    def _compact(self) -> None:
        compactor = Compactor(run_of(f"upkeep/{self.number}"), f"upkeep/{self.number}", "g", "benchmark")
        barrier = open_compaction(self.deployment, TOPOLOGY, None, compactor)
        assert isinstance(barrier, BarrierRecord), barrier
        tables = self.deployment.tables
        assert compact(self.deployment, barrier, lambda *at: replace_files(tables, *at), compactor).over

    def _take_out(self, table: str, snapshots: Sequence[int]) -> str:
        expiry = self.deployment.tables.load(table).maintenance.expire_snapshots()
        expiry.by_ids(list(snapshots)).commit()
        return "no files"

    def sizes(self) -> dict[str, int]:
        """Of a table's metadata document, and of the MetaService's tables."""
        table = TABLES[-1]
        location = self.deployment.tables.metadata_locations([table])[table]
        document = self.deployment.tables._documents.read(location)
        sizes = {
            "metadata document, KiB": round(len(self.deployment.tables._documents.read_bytes(location)) / 1024),
            "snapshots": len(document["snapshots"]),
            "refs": len(document["refs"]),
            "snapshot log, entries": len(document["snapshot-log"]),
            "metadata log, entries": len(document["metadata-log"]),
        }
        journal = self.deployment.tables.location("_barrier", TOPOLOGY, "journal")
        return {
            **sizes,
            "files of the journal": len(self.deployment.tables._documents.names(journal)),
            **rows_of(self.deployment),
        }


def rows_of(deployment: Deployment) -> dict[str, int]:
    """How many rows each table of the MetaService has, if any."""
    engine = create_engine(deployment.meta.url)
    with engine.connect() as connection:
        counts = {
            f"rows of {name}": connection.execute(select(func.count()).select_from(table)).scalar_one()
            for name, table in schema.metadata.tables.items()
        }
    engine.dispose()
    return {name: count for name, count in counts.items() if count}
