"""Many tables at once: our publish, as many commits of single tables, and Nessie's commit to several tables."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.names import Stamp
from airflow_barrier.tables._rest_server import RestServer
from airflow_barrier.tables.iceberg import IcebergTables
from airflow_barrier.tables.port import Publication
from benchmarks.lake import branch, make_tables, schema, stage
from benchmarks.report import Measured
from tests.support.nessie import nessie_server
from tests.support.object_store import object_store
from tests.support.postgresql import PASSWORD, PostgreSQL, without_password

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

#: tables -> how often each side is measured
_COUNTS = {10: 7, 100: 5, 1_000: 1}
#: Threads that make tables in Nessie.
_CREATORS = 4
_TOPOLOGY, _INCARNATION = "wide", str(uuid.UUID(int=0))


def measure(folder: Path, *, quick: bool) -> list[Measured]:
    counts = {2: 2} if quick else _COUNTS
    with ExitStack() as stack:
        server = stack.enter_context(PostgreSQL(fsync="on", full_page_writes="on"))
        url = without_password(stack.enter_context(server.database()))
        settings = {
            "SQLite": Settings.embedded(str(folder / "sqlite")),
            "PostgreSQL": Settings(
                url, url, str(folder / "postgresql"), metaservice_password=PASSWORD, catalog_password=PASSWORD
            ),
        }
        (folder / "sqlite").mkdir()
        rows = []
        nessie = {} if quick else _nessie(folder, counts)
        sides = {kind: stack.enter_context(_connected(one)) for kind, one in settings.items()}
        for count, times in counts.items():
            for kind, deployment in sides.items():
                ours, singles = _in_turns(deployment.tables, count, times)
                rows.append([f"{count:,}", kind, f"{ours:.3f}", f"{singles:.3f}", f"{singles / ours:.1f}"])
            if count in nessie:
                rows.append([f"{count:,}", "Nessie", f"{nessie[count]:.3f}", "", ""])
    return [
        Measured(
            "Publishing many tables at once",
            "One `tables.publish`: every table's `main` to its staged snapshot, a tag for each, the attempt's branch "
            "dropped, foreign writes looked for, all tables visible in one transaction. Against as many commits of "
            "single tables by pyiceberg that move `main`, set a tag and drop a branch, the loading of each table "
            "included. In turns, on tables of format version 2 in the same catalog, local files; PostgreSQL with "
            f"fsync. Medians of {', '.join(f'{times} ({count:,} tables)' for count, times in counts.items())}. Nessie "
            "0.99 keeps no branches, so our publish cannot run there: the number is one `transactions/commit` over as "
            "many tables that sets a property of each, the smallest change there is, with its store in memory and "
            "moto's S3 for the files.",
            ["tables", "catalog", "one step, seconds", "single commits, seconds", "times faster"],
            rows,
        )
    ]


@contextmanager
def _connected(settings: Settings) -> Iterator[Deployment]:
    deployment = Deployment.connect(settings)
    yield deployment
    deployment.close()


def _in_turns(tables: IcebergTables, count: int, times: int) -> tuple[float, float]:
    """Seconds of one publish of ours, and of as many single commits."""
    ours, theirs = ([f"{side}{count}.t{number:04}" for number in range(count)] for side in ("ours", "theirs"))
    for names in (ours, theirs):
        make_tables(tables, names)
    mains: dict[str, int | None] = dict.fromkeys([*ours, *theirs])
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for barrier in range(1, times + 1):
        stamp = Stamp(_TOPOLOGY, barrier, 0, barrier, _INCARNATION)
        for side, names, publish in (("ours", ours, _publish), ("theirs", theirs, _publish_singly)):
            branch(tables, dict.fromkeys(names, stamp), mains)
            heads = stage(tables, dict.fromkeys(names, stamp))
            began = time.perf_counter()
            publish(tables, stamp, mains, heads)
            seconds[side].append(time.perf_counter() - began)
            assert tables.mains(names) == heads
            mains.update(heads)
    return median(seconds["ours"]), median(seconds["theirs"])


def _publish(tables: IcebergTables, stamp: Stamp, mains: dict[str, int | None], heads: dict[str, int]) -> None:
    tables.publish(
        [Publication(name, _TOPOLOGY, stamp.barrier_id, mains[name], head, _tag(stamp)) for name, head in heads.items()]
    )


def _publish_singly(tables: IcebergTables, stamp: Stamp, mains: dict[str, int | None], heads: dict[str, int]) -> None:
    catalog: Catalog = tables.catalog
    for name, head in heads.items():
        with catalog.load_table(name).manage_snapshots() as snapshots:
            snapshots.create_branch(head, "main").create_tag(head, _tag(stamp)).remove_branch(stamp.branch)


def _tag(stamp: Stamp) -> str:
    return f"barrier_{stamp.topology}_b{stamp.barrier_id}_r0"


def _nessie(folder: Path, counts: Mapping[int, int]) -> dict[int, float]:
    """Count of tables -> seconds of one commit to all of them, the smallest change that there is."""
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    with object_store(folder) as store, nessie_server(folder, store) as found:
        server = RestServer("lake", {**dict(found.properties), "uri": found.uri})
        server.catalog.create_namespace("wide")
        names: list[str] = []
        for count, times in counts.items():
            with ThreadPoolExecutor(_CREATORS) as pool:
                more = [f"wide.t{number:04}" for number in range(len(names), count)]
                list(pool.map(lambda name: server.catalog.create_table(name, schema()), more))
            names += more
            for time_of in range(times):
                changes = [
                    {
                        "identifier": server.identifier(name),
                        "requirements": [],
                        "updates": [{"action": "set-properties", "updates": {"benchmark": str(time_of)}}],
                    }
                    for name in names
                ]
                began = time.perf_counter()
                server.commit_together(changes)
                seconds[count].append(time.perf_counter() - began)
        server.close()
    return {count: median(times) for count, times in seconds.items()}
