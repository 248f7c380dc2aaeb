"""A reader that looks all the time: at both levels through the MetaService, and by tag as any engine can."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from select import select
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.levels import Level
from tests.crash.checking import expected_rows, rows_at
from tests.crash.processes import Child, Tell, fork
from tests.crash.shopping import COLUMNS, Shop

if TYPE_CHECKING:
    from pyiceberg.table import Table

_T = TypeVar("_T")
#: Seconds between two rounds of reads that nobody asked for.
_PAUSE = 1.2
#: Orders: a round that is answered when it is over, or one beside what happens meanwhile.
_LOOK, _GLANCE = b"!", b"."
_TRIES = 10


@dataclass
class Reader:
    """Reads until its parent closes the pipe."""

    shop: Shop
    priced: Sequence[bool]
    cache: dict[str, Any] = field(default_factory=dict)
    reads: int = 0
    barriers: set[int] = field(default_factory=set)
    steps_back: int = 0
    newest: dict[Level, int] = field(default_factory=lambda: {Level.REPEATABLE_READ: 0, Level.READ_COMMITTED: 0})

    def run(self, orders: int, tell: Tell) -> None:
        """A byte in ``orders`` asks for a round now; their end ends the reader."""
        deployment = Deployment.connect(self.shop.settings)
        oracle = expected_rows(self.priced)
        while True:
            asked, _, _ = select([orders], [], [], _PAUSE)
            order = os.read(orders, 1) if asked else _GLANCE
            if not order:
                break
            self._round(deployment, oracle)
            if order == _LOOK:
                tell({"looked": True})
        deployment.close()
        tell({"reads": self.reads, "barriers": len(self.barriers), "steps_back": self.steps_back})

    def _round(self, deployment: Deployment, oracle: Sequence[Mapping[str, Any]]) -> None:
        for level in self.newest:
            barrier_id = self._read(deployment, level, oracle)
            if barrier_id < self.newest[level]:
                assert level is Level.READ_COMMITTED, f"{level}: from {self.newest[level]} back to {barrier_id}"
                self._excuse(deployment, self.newest[level])
            self.newest[level] = barrier_id
        if self.newest[Level.REPEATABLE_READ]:
            self._read_tag(deployment, self.newest[Level.REPEATABLE_READ], oracle)

    def _read(self, deployment: Deployment, level: Level, oracle: Sequence[Mapping[str, Any]]) -> int:
        resolution = deployment.meta.answers.resolve(self.shop.name, level)
        assert resolution.barrier_id is not None
        for name in COLUMNS:
            snapshot = resolution.tables[self.shop.table(name)].snapshot_id
            found = self._rows(deployment, name, lambda _, at=snapshot: at)  # type: ignore[misc]
            expected = oracle[resolution.barrier_id][name]
            assert found == expected, f"{level}, barrier {resolution.barrier_id}: {name} has {found}, not {expected}"
        self._count(resolution.barrier_id)
        return resolution.barrier_id

    def _read_tag(self, deployment: Deployment, barrier_id: int, oracle: Sequence[Mapping[str, Any]]) -> None:
        tag = deployment.meta.barriers.get(self.shop.name, barrier_id).tag
        for name in COLUMNS:
            found = self._rows(deployment, name, lambda table: table.metadata.refs[tag].snapshot_id)
            assert found == oracle[barrier_id][name], f"tag {tag}: {name} has {found}"
        self._count(barrier_id)

    def _rows(self, deployment: Deployment, name: str, at: Callable[[Table], int | None]) -> Any:
        for tries in range(_TRIES):
            try:
                table = deployment.tables.load(self.shop.table(name))
            except FileNotFoundError:
                # old metadata is deleted after a commit, also between a look at the pointer and one at the file
                if tries == _TRIES - 1:
                    raise
                continue
            return rows_at(table, at(table), self.cache)
        raise AssertionError("unreachable")

    def _excuse(self, deployment: Deployment, barrier_id: int) -> None:
        """Read committed may step back if work was staged anew, and the audit says so."""
        events = {entry.event for entry in deployment.meta.audit.newest(self.shop.name, barrier_id)}
        assert "restaged" in events, f"read committed left barrier {barrier_id}, and nothing was restaged: {events}"
        self.steps_back += 1

    def _count(self, barrier_id: int) -> None:
        self.reads += 1
        self.barriers.add(barrier_id)


@dataclass
class ReaderProcess:
    """The reader, seen from the parent."""

    child: Child
    orders: int

    def look(self) -> None:
        """Let it read at both levels now, and wait until it has."""
        os.write(self.orders, _LOOK)
        said = self.child.told()
        assert said is not None, "the reader has ended"
        assert "looked" in said, said.get("trace")

    def glance(self) -> None:
        """Let it read now, beside whatever happens."""
        with suppress(BrokenPipeError):  # what it died of is told when all is over
            os.write(self.orders, _GLANCE)

    def end(self) -> dict[str, Any]:
        """What it has seen; or the error that it died of."""
        os.close(self.orders)
        _, said = self.child.end()
        return said[-1] if said else {"trace": "the reader died without a word"}


def start_reader(shop: Shop, priced: Sequence[bool]) -> ReaderProcess:
    orders, writer = os.pipe()

    def read(tell: Tell) -> None:
        os.close(writer)
        Reader(shop, priced).run(orders, tell)

    child = fork(read)
    os.close(orders)
    return ReaderProcess(child, writer)
