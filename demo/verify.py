"""Every table at every barrier against its full recomputation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_barrier.protocol.states import BarrierState
from demo.oracle import Difference, Rows, compare, recompute, rows_of

if TYPE_CHECKING:
    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.protocol.records import Barrier

TOPOLOGY = "shopping"


@dataclass(frozen=True)
class Equality:
    """``checked`` tables x barriers were compared; ``differences`` says where they were not equal."""

    tables: int
    barriers: int
    rows: int
    differences: tuple[str, ...]


def committed_barriers(deployment: Deployment) -> list[Barrier]:
    """The barriers of the shopping topology that are COMMIT, in order."""
    chain: list[Barrier] = []
    barrier = deployment.meta.barriers.head(TOPOLOGY)
    while barrier is not None and barrier.barrier_id:
        if barrier.state is BarrierState.COMMIT:
            chain.append(barrier)
        barrier = deployment.meta.barriers.get(TOPOLOGY, barrier.predecessor or 0)
    return chain[::-1]


def expectations(deployment: Deployment, landing: Path) -> Iterator[tuple[Barrier, dict[str, Rows]]]:
    """Of each committed barrier, in order, what its input up to the cut amounts to, table by table."""
    line_files: set[Path] = set()
    product_files: set[Path] = set()
    for barrier in committed_barriers(deployment):
        cuts = deployment.meta.cuts.of(TOPOLOGY, barrier.barrier_id)
        line_files |= {landing / "shopping" / item for item in cuts["shopping"].items}
        product_files |= {landing / "products" / item for item in cuts["products"].items}
        yield barrier, recompute(line_files, product_files)


def verify(deployment: Deployment, expectations: Iterable[tuple[Barrier, Mapping[str, Rows]]]) -> Equality:
    """Compare each table, read by the tag of each committed barrier, with what is expected of it."""
    differences: list[str] = []
    rows = barriers = 0
    tables: set[str] = set()
    for barrier, expected in expectations:
        barriers += 1
        for table, wanted in expected.items():
            difference = _compare(deployment, barrier, table, wanted)
            rows += wanted.total()
            tables.add(table)
            if difference is not None:
                differences.append(f"{barrier}: {difference}")
    return Equality(len(tables), barriers, rows, tuple(differences))


def verify_plain(deployment: Deployment, landing: Path) -> list[str]:
    """The uncoordinated tables, as they are now, against everything that landed."""
    expected = recompute((landing / "shopping").rglob("*.parquet"), (landing / "products").rglob("*.parquet"))
    differences = (
        compare(table, rows, rows_of(deployment.tables.load(f"plain.{table}").scan().to_arrow()))
        for table, rows in expected.items()
    )
    return [f"plain.{difference}" for difference in differences if difference is not None]


def _compare(deployment: Deployment, barrier: Barrier, table: str, expected: Rows) -> Difference | None:
    iceberg = deployment.tables.load(f"shop.{table}")
    snapshot = iceberg.snapshot_by_name(barrier.tag)
    if snapshot is None:
        raise RuntimeError(f"shop.{table} has no tag {barrier.tag} although {barrier} is COMMIT")
    return compare(table, expected, rows_of(iceberg.scan(snapshot_id=snapshot.snapshot_id).to_arrow()))
