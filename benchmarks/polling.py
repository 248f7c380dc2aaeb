"""A reader in a process of its own, who reads all tables at repeatable read again and again while they are revised."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from multiprocessing import get_context
from threading import Event

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.revisions import RevisionState
from benchmarks.shop import AMOUNT, PRICE, PURCHASES, TOPOLOGY

#: Seconds between two reads: a reader who never stops would take a core from what is measured.
_PAUSE = 1.0
#: Seconds for the reader's process to be there, and to end.
_PATIENCE = 120


@dataclass(frozen=True)
class Read:
    """One read. ``known``: the newest revision that was COMMIT before it began; ``revision``: the one that it got.

    ``amount`` and ``price``: totals over the purchases and over the table that is derived from them, or None if the
    read failed, which ``error`` says.
    """

    known: int
    revision: int | None = None
    amount: tuple[int, int] | None = None
    price: tuple[Decimal, Decimal] | None = None
    error: str | None = None

    @property
    def failed(self) -> bool:
        return self.error is not None

    @property
    def stale(self) -> bool:
        """It got an older revision than the one that had been published before it began."""
        return self.revision is not None and self.revision < self.known

    @property
    def torn(self) -> bool:
        """Its tables are not of one revision, or not of one barrier."""
        return any(both is not None and both[0] != both[1] for both in (self.amount, self.price))


class Reads:
    """What a reader has read, once it has stopped."""

    def __init__(self) -> None:
        self.all: list[Read] = []

    def counted(self) -> str:
        failed, stale, torn = (sum(getattr(read, kind) for read in self.all) for kind in ("failed", "stale", "torn"))
        revisions = len({read.revision for read in self.all if read.revision is not None})
        return (
            f"{len(self.all):,} reads by a reader beside it, of {revisions} revisions: {failed} failed, {stale} got "
            f"the old revision though begun after the new one was COMMIT, {torn} saw tables that do not agree"
        )


@contextmanager
def reading_beside(settings: Settings) -> Iterator[Reads]:
    """Someone reads until the block ends."""
    reads = Reads()
    context = get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(1, mp_context=context) as pool:
        began, stop = manager.Event(), manager.Event()
        future: Future[list[Read]] = pool.submit(_read_until, settings, began, stop)
        try:
            assert began.wait(_PATIENCE), future
            yield reads
        finally:
            stop.set()
            reads.all = future.result(_PATIENCE)


def _read_until(settings: Settings, began: Event, stop: Event) -> list[Read]:
    deployment = Deployment.connect(settings)
    reads = []
    try:
        while not stop.wait(_PAUSE):
            reads.append(_read(deployment))
            began.set()
    finally:
        deployment.close()
    return reads


def _read(deployment: Deployment) -> Read:
    meta = deployment.meta
    known = max(
        (each.revision for each in meta.revisions.newest(TOPOLOGY, 2) if each.state is RevisionState.COMMIT), default=0
    )
    try:
        found = meta.answers.resolve(TOPOLOGY, Level.REPEATABLE_READ)
        amount, price = (
            _total(deployment, PURCHASES, found.tables[PURCHASES].snapshot_id, "amount", "price"),
            (
                *_total(deployment, AMOUNT, found.tables[AMOUNT].snapshot_id, "totalAmount"),
                *_total(deployment, PRICE, found.tables[PRICE].snapshot_id, "totalPrice"),
            ),
        )
    except Exception as error:  # whatever it is: it is counted
        return Read(known, error=f"{type(error).__name__}: {error}")
    return Read(known, found.revision, (amount[0], price[0]), (amount[1], price[1]))


def _total(deployment: Deployment, table: str, snapshot_id: int | None, *columns: str) -> tuple[int | Decimal, ...]:
    import pyarrow.compute as pc

    rows = deployment.tables.load(table).scan(snapshot_id=snapshot_id, selected_fields=columns).to_arrow()
    return tuple(pc.sum(rows[column]).as_py() for column in columns)
