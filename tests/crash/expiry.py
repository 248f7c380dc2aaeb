"""An expiry dies at every step, or sleeps while another one does its work; another one follows, and readers look.

A process of its own, like `lane.py`: it reads from its standard input where, and which lane of how many it is, and
prints JSON lines. Each point starts from the same six barriers, of which somebody holds the second.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.expiring import expire
from airflow_barrier.protocol.errors import ExpiredBarrierError
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level, Resolution
from airflow_barrier.protocol.names import tag_name
from airflow_barrier.protocol.retention import Retention
from tests.crash import instrument
from tests.crash.checking import check_files, expected_rows, files_of, rows_at
from tests.crash.instrument import BEFORE, WATCH, watching
from tests.crash.lane import Orders, rehearse
from tests.crash.points import END, Point, points_of_task
from tests.crash.processes import Child, Tell, fork, run
from tests.crash.scenarios import CLEAR_ENDS
from tests.crash.shopping import COLUMNS, TASKS, Shop
from tests.support.computing import a_core
from tests.support.drawing import OPERATIONS, drawn

if TYPE_CHECKING:
    from pyiceberg.table import Table

DAYS, HELD, KEEP = 6, 2, 2
PRICED = [True] * DAYS
DEATH, ZOMBIE = "death", "zombie"
#: At every so many points one sleeps, too.
_ASLEEP = 3
#: What pyiceberg says of a snapshot that is not there any more; Iceberg's own expiry passes over it.
_ENDS = (*CLEAR_ENDS, "builtins.ValueError")


@dataclass(frozen=True)
class Kept:
    """The deployment as it was before any expiry, to be put back for each point."""

    shop: Shop
    copy: Path
    #: what somebody holds
    answer: dict[str, int | None]

    def restore(self) -> None:
        shutil.rmtree(self.shop.folder)
        shutil.copytree(self.copy, self.shop.folder)


def prepare(orders: Orders) -> Kept:
    shop = orders.shop(Path(orders.folder) / "expiry")

    def work(tell: Tell) -> None:
        shop.create()
        for day in range(1, DAYS + 1):
            shop.land(day, True)
            for task in TASKS:
                shop.run(task, day)
        with closing(Deployment.connect(shop.settings)) as deployment:
            hold = Hold("a report", 24 * 3600)
            answer = deployment.meta.answers.resolve(shop.name, Level.REPEATABLE_READ, at=HELD, hold=hold)
        tell(snapshots_of(shop, answer))

    answer = run(work, "six barriers")[-1]
    copy = Path(orders.folder) / "kept"
    shutil.copytree(shop.folder, copy)
    return Kept(shop, copy, answer)


# --- an expiry --------------------------------------------------------------------------------------


def expires(deployment: Deployment, shop: Shop) -> None:
    def take_out(table: str, snapshot_ids: Sequence[int]) -> str:
        """As Spark does it: the snapshots first, then the files that nobody can see any more."""
        cache: dict[str, Any] = {}
        before = _files(deployment, table, cache)
        deployment.tables.load(table).maintenance.expire_snapshots().by_ids(list(snapshot_ids)).commit()
        gone = sorted(before - _files(deployment, table, cache))
        io = deployment.tables.load(table).io
        for file in gone:
            io.delete(file)
        return f"{len(gone)} files"

    expire(deployment, shop.name, Retention(KEEP), take_out, actor="expiry")


def _files(deployment: Deployment, table: str, cache: dict[str, Any]) -> set[str]:
    """All files that a table's snapshots name."""
    iceberg, named = deployment.tables.load(table), set()
    for snapshot in iceberg.metadata.snapshots:
        named.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(iceberg.io):
            named |= {manifest.manifest_path, *files_of(manifest, iceberg.io, cache)}
    return named


def record(kept: Kept) -> list[str]:
    """The operations of an expiry that nothing disturbs."""

    def work(tell: Tell) -> None:
        operations: list[str] = []

        def observe(when: str, operation: str) -> None:
            if when == BEFORE:
                operations.append(operation)

        with (
            closing(Deployment.connect(kept.shop.settings)) as deployment,
            watching(observe, kept.shop.folder, kept.shop.name),
        ):
            expires(deployment, kept.shop)
        tell({"operations": operations})

    kept.restore()
    found: list[str] = run(work, "recording")[-1]["operations"]
    return found


# --- one point --------------------------------------------------------------------------------------


def play(kept: Kept, point: Point, mode: str) -> dict[str, Any]:
    """What it came to: how often readers looked, how the first expiry ended, and what was left in the end."""
    kept.restore()
    child = _until(kept.shop, point, mode)
    ended, reads = "killed", 0
    if mode == DEATH:
        code, said = child.end()
        assert code == -signal.SIGKILL, f"{point}: expected to die there, found exit code {code}: {said}"
    else:
        assert child.told() is not None, f"{point}: the point was not reached"
        child.stopped()
        reads = _go_on(kept, 1, f"while asleep {point}")["reads"]
        child.resume()
        ended = _ending(point, *child.end())
    left = _go_on(kept, 2, f"after {mode} {point}")
    return {"mode": mode, "ended": ended, "reads": reads + left.pop("reads"), "left": left}


def _go_on(kept: Kept, expiries: int, what: str) -> dict[str, Any]:
    """Others expire, and readers look before and after: how often, and what there is then."""

    def work(tell: Tell) -> None:
        with closing(Deployment.connect(kept.shop.settings)) as deployment:
            look = Look(kept, deployment)
            look.at_all()
            for _ in range(expiries):
                expires(deployment, kept.shop)
            look.at_all()
            tell({"reads": look.reads, **_left(kept.shop, deployment)})

    return run(work, what)[-1]


def _until(shop: Shop, point: Point, mode: str) -> Child:
    """An expiry in a child, which dies or falls asleep at the point (there as soon as it holds no lock)."""

    def work(tell: Tell) -> None:
        reached = False

        def observe(when: str, operation: str) -> None:
            nonlocal reached
            reached = reached or (when, operation) == (point.when, point.operation)
            if reached and mode == DEATH:
                os.kill(os.getpid(), signal.SIGKILL)
            if reached and not WATCH.holds_lock:
                WATCH.observer = None
                tell({"asleep": True})
                os.kill(os.getpid(), signal.SIGSTOP)

        with closing(Deployment.connect(shop.settings)) as deployment:
            with watching(observe, shop.folder, shop.name):
                expires(deployment, shop)
            if point.when == END:
                observe(END, "")

    return fork(work)


def _ending(point: Point, code: int, said: Sequence[dict[str, Any]]) -> str:
    if code == 0:
        return "success"
    assert said, f"{point}: the zombie ended with {code} and said nothing"
    error = said[-1]
    assert any(base in _ENDS for base in error["family"]), f"{point}: {error['trace']}"
    return str(error["error"]).partition(":")[0]


# --- readers ----------------------------------------------------------------------------------------


@dataclass
class Look:
    """Every barrier is whole, with all its files, or said to have expired; what is held is whole."""

    kept: Kept
    deployment: Deployment
    reads: int = 0
    cache: dict[str, Any] = field(default_factory=dict)

    def at_all(self) -> None:
        shop, meta = self.kept.shop, self.deployment.meta
        tables = {name: self.deployment.tables.load(shop.table(name)) for name in COLUMNS}
        readable = {barrier.barrier_id for barrier in meta.answers.readable(shop.name)}
        assert readable >= {HELD, *range(DAYS - KEEP + 1, DAYS + 1)}, readable
        for number in range(1, DAYS + 1):
            try:
                found = meta.answers.resolve(shop.name, Level.REPEATABLE_READ, at=number)
            except ExpiredBarrierError:
                assert number not in readable, f"barrier {number}"
                continue
            assert number in readable, f"barrier {number}"
            self._read(tables, number, snapshots_of(shop, found))
        self._read(tables, HELD, self.kept.answer)
        for table in tables.values():
            check_files(table, self.cache)

    def _read(self, tables: Mapping[str, Table], number: int, snapshots: Mapping[str, int | None]) -> None:
        self.reads += 1
        for name, table in tables.items():
            rows = rows_at(table, snapshots[name], self.cache)
            assert rows == expected_rows(PRICED)[number][name], f"{name} at barrier {number}"
            tag = table.metadata.refs.get(tag_name(self.kept.shop.name, number, 0))
            assert tag is not None, f"{name}: barrier {number} can be read, and has no tag"
            assert tag.snapshot_id == snapshots[name], f"{name}: tag of barrier {number}"


def snapshots_of(shop: Shop, answer: Resolution) -> dict[str, int | None]:
    return {name: answer.tables[shop.table(name)].snapshot_id for name in COLUMNS}


def _left(shop: Shop, deployment: Deployment) -> dict[str, Any]:
    """What there is in the end, of which all is the same whatever died on the way."""
    meta, name = deployment.meta, shop.name
    left: dict[str, Any] = {"readable": [barrier.barrier_id for barrier in meta.answers.readable(name)]}
    left["being expired"] = [barrier.barrier_id for barrier in meta.expiry.pending(name)]
    for day in range(1, DAYS + 1):
        left[f"details of {day}"] = [len(meta.barriers.progress(name, day)), len(meta.attempts.of(name, day))]
    for table in shop.tables():
        metadata = deployment.tables.load(table).metadata
        left[f"refs of {table}"] = sorted([ref, to.snapshot_id] for ref, to in metadata.refs.items())
        left[f"snapshots of {table}"] = sorted(snapshot.snapshot_id for snapshot in metadata.snapshots)
    return left


def main() -> None:
    """Of what this run plays, every so many of the scenarios are this lane's."""
    said = json.loads(sys.stdin.read())
    instrument.install()
    orders = Orders(said["folder"])
    rehearse(orders)
    kept = prepare(orders)
    operations = record(kept)
    kept.restore()
    undisturbed = _go_on(kept, 2, "undisturbed")
    del undisturbed["reads"]
    print(json.dumps({"operations": len(operations)}), flush=True)
    points = points_of_task("expiry", [f"expiry {operation}" for operation in operations])
    scenarios = [*((DEATH, point) for point in points), *((ZOMBIE, point) for point in points[::_ASLEEP])]
    for mode, point in drawn(scenarios, touches=lambda _: OPERATIONS["expiry"])[said["lane"] :: said["lanes"]]:
        with a_core():
            result = {"point": str(point), "undisturbed": undisturbed, **play(kept, point, mode)}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
