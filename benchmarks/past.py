"""What the past costs: a recovery, and the plan of a revision, after many barriers; a cut of a folder of used files."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TypeVar

from sqlalchemy import create_engine, delete, insert, select, update

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.journal import entry_uri, read_entry
from airflow_barrier.coordinator.recovering import recover
from airflow_barrier.coordinator.revisions.begin import plan_revision
from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.trimmed_journal import fold
from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.schema import DatabaseNow
from airflow_barrier.sources.files.listing import Folder
from airflow_barrier.tables._local_files import local_path
from benchmarks.report import Measured
from benchmarks.retained import TABLES, TOPOLOGY, Barrier
from tests.scale.history import multiply
from tests.support.runs import run_of

_LENGTHS = (1_000, 100_000)
_FILES = (1_000, 100_000, 1_000_000)
#: Barriers that are still readable; the rest has expired.
_READABLE = 31
#: Barriers that a revision would compute again.
_CORRECTED = 7
_NEW, _A_FOLDER = 10, 10_000
_SOURCE = "landing"
_T = TypeVar("_T")


def measure(folder: Path, *, quick: bool) -> list[Measured]:
    lengths, files = ((150, 300), (20, 100)) if quick else (_LENGTHS, _FILES)
    return [*_many_barriers(folder, lengths), _cuts(folder, files)]


# --- a recovery, and a plan -----------------------------------------------------------------------


def _many_barriers(folder: Path, lengths: tuple[int, ...]) -> list[Measured]:
    rows, plans = [], []
    for length in lengths:
        home = folder / str(length)
        settings = _settings(home, "metaservice.db")
        deployment = Deployment.connect(settings)
        _make_past(deployment, length)
        wanted = Wanted(TOPOLOGY, length - _CORRECTED + 1)
        seconds = median(_timed(partial(plan_revision, deployment, wanted))[1] for _ in range(5))
        plans.append([f"{length:,}", f"{seconds:,.3f}"])
        rows.append(_row(home, length, "a file each"))
        fold(deployment, TOPOLOGY, range(1, length - _READABLE + 1))
        deployment.close()
        rows.append(_row(home, length, "folded"))
    recoveries = Measured(
        "A recovery from nothing",
        "The MetaService is lost: `recover` reads the journal of all barriers into a new one (SQLite, local files), "
        f"with two tables a barrier. All but the newest {_READABLE} have expired and are trimmed: their entries are "
        "copies of a real one. Each in a process of its own, whose memory is the most that it had. *A file each* is "
        "how the journal was before expiry folded it.",
        ["barriers, journal", "files", "MiB", "seconds", "memory, MiB"],
        rows,
    )
    return [
        recoveries,
        Measured(
            "A revision's plan",
            f"In the same MetaServices, before that: what a correction of the newest {_CORRECTED} barriers would do. "
            "Median of five.",
            ["barriers", "seconds"],
            plans,
        ),
    ]


def _row(home: Path, length: int, how: str) -> list[str]:
    journal = [path for path in (home / "_barrier" / TOPOLOGY / "journal").iterdir() if path.is_file()]
    size = sum(path.stat().st_size for path in journal) / 2**20
    seconds, memory = _in_a_child(_recover, home, f"{how.replace(' ', '-')}.db")
    return [f"{length:,}, {how}", f"{len(journal):,}", f"{size:,.1f}", f"{seconds:,.1f}", f"{memory:,.0f}"]


def _settings(home: Path, metaservice: str) -> Settings:
    home.mkdir(exist_ok=True)
    return Settings(f"sqlite:///{home}/{metaservice}", f"sqlite:///{home}/catalog.db", str(home))


def _make_past(deployment: Deployment, length: int) -> None:
    """So many barriers, of which the newest are really run."""
    Barrier.make_tables(deployment)
    Barrier(deployment, 1)
    last = length - _READABLE
    engine = create_engine(deployment.meta.url)
    with engine.begin() as connection:
        multiply(connection, 1, last)
        rows = schema.table_progress.c
        for table in TABLES:  # the copies count snapshots up, and `main` has stayed where it was
            first = select(rows.snapshot_id).where(rows.barrier_id == 1, rows.table_name == table).scalar_subquery()
            copies = rows.barrier_id.between(2, last) & (rows.table_name == table)
            connection.execute(update(schema.table_progress).where(copies).values(snapshot_id=first))
    template = read_entry(deployment, TOPOLOGY, 1)
    for number in range(2, last + 1):
        entry = replace(
            template,
            barrier_id=number,
            predecessor=number - 1,
            timestamp=template.timestamp + timedelta(days=number - 1),
            run=run_of(f"scheduled__{number}"),
        )
        local_path(entry_uri(deployment, TOPOLOGY, number)).write_text(entry.dumps())
    for number in range(1, _READABLE + 1):
        Barrier(deployment, 24 * length + number)
    past = schema.barrier.c.barrier_id.between(1, last)
    with engine.begin() as connection:
        gone = dict.fromkeys(("thinned_at", "expiring_at", "expired_at", "trimmed_at"), DatabaseNow())
        connection.execute(update(schema.barrier).where(past).values(gone))
        connection.execute(delete(schema.table_progress).where(schema.table_progress.c.barrier_id.between(1, last)))
    engine.dispose()


def _recover(home: Path, metaservice: str) -> None:
    deployment = Deployment.connect(_settings(home, metaservice))
    deployment.meta.open()
    recover(deployment, TOPOLOGY, actor="benchmark", reason="benchmark")
    deployment.close()


# --- a cut ----------------------------------------------------------------------------------------


def _cuts(folder: Path, sizes: tuple[int, ...]) -> Measured:
    settings = _settings(folder / "cuts", "metaservice.db")
    deployment = Deployment.connect(settings)
    Barrier.make_tables(deployment)
    Barrier(deployment, 1)
    landing = folder / "landing"
    rows, made = [], 0
    for size in sizes:
        paths = [_land(landing, number) for number in range(made, size)]
        made = size
        _use(deployment, paths[:-_NEW])
        listed, listing = _timed(Folder(str(landing)).files)
        names = [file.path for file in listed]
        used, asking = _timed(partial(deployment.meta.cuts.used_items, TOPOLOGY, _SOURCE, names))
        _use(deployment, paths[-_NEW:])
        assert len(listed) - len(used) == _NEW
        rows.append([f"{size:,}", f"{listing:,.2f}", f"{asking:,.2f}"])
    deployment.close()
    return Measured(
        "A cut of a landing folder whose files were used",
        f"All but {_NEW} of so many files (in folders of {_A_FOLDER:,}, on a local disk) are in cuts of before. A cut "
        "lists them all, and asks the MetaService (SQLite) which are used.",
        ["files", "listing, seconds", "asking, seconds"],
        rows,
    )


def _land(landing: Path, number: int) -> str:
    name = f"{number // _A_FOLDER:03}/part-{number:08}.parquet"
    path = landing / name
    if number % _A_FOLDER == 0:
        path.parent.mkdir(parents=True)
    path.touch()
    return name


def _use(deployment: Deployment, paths: list[str]) -> None:
    engine = create_engine(deployment.meta.url)
    with engine.begin() as connection:
        key = {"topology": TOPOLOGY, "line": 0, "barrier_id": 1, "source": _SOURCE}
        connection.execute(insert(schema.cut_item), [{**key, "item": path} for path in paths])
    engine.dispose()


def _timed(work: Callable[[], _T]) -> tuple[_T, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began


# --- a process of its own -------------------------------------------------------------------------


def _in_a_child(work: Callable[[Path, str], None], *arguments: object) -> tuple[float, float]:
    """Seconds, and MiB at the most."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(_measured, (work, arguments))


def _measured(work: Callable[..., None], arguments: tuple[object, ...]) -> tuple[float, float]:
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
