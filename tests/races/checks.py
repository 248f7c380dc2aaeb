"""What must be true of a shop whoever raced for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from airflow_barrier.coordinator.deployment import with_password
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.names import tag_name
from airflow_barrier.protocol.records import AuditEntry
from airflow_barrier.protocol.states import BarrierState
from tests.metaservice.auditing import check_audit
from tests.support.shop import COLUMNS, Shop


def check_published_once(shop: Shop, settings: Settings) -> None:
    """Each committed barrier was decided once and published once in every table; what is served is what is there."""
    meta = shop.deployment.meta
    head = meta.barriers.head("shopping")
    assert head is not None
    barriers = [meta.barriers.get("shopping", number) for number in range(1, head.barrier_id + 1)]
    committed = [barrier.barrier_id for barrier in barriers if barrier.state is BarrierState.COMMIT]
    for barrier in barriers:
        events = Counter(entry.event for entry in entries_of(shop, barrier.barrier_id, "barrier"))
        done = 1 if barrier.barrier_id in committed else 0
        assert (events["opened"], events["commit"]) == (1, done), f"{barrier}: {events}"
        written = [entry.subject for entry in entries_of(shop, barrier.barrier_id, "table") if entry.event == "written"]
        assert sorted(written) == sorted(list(COLUMNS) * done), f"{barrier}: WRITTEN once each"
    served = meta.answers.resolve("shopping", Level.REPEATABLE_READ)
    snapshots = {
        number: {p.table: p.snapshot_id for p in meta.barriers.progress("shopping", number)} for number in committed
    }
    for table in COLUMNS:
        metadata = shop.deployment.tables.load(table).metadata
        main = metadata.snapshot_by_name("main")
        assert (main.snapshot_id if main else None) == served.tables[table].snapshot_id
        tags = {name: ref.snapshot_id for name, ref in metadata.refs.items() if ref.snapshot_ref_type == "tag"}
        assert tags == {tag_name("shopping", n, 0): snapshots[n][table] for n in committed}, f"{table}: one tag each"
        moves = [entry.snapshot_id for entry in metadata.snapshot_log]
        assert moves == _moves(snapshots[number][table] for number in committed), f"{table}: main moved once each"
    check_audit(with_password(settings.metaservice_url, settings.metaservice_password))


def entries_of(shop: Shop, barrier_id: int, kind: str) -> list[AuditEntry]:
    return [e for e in shop.deployment.meta.audit.newest("shopping", barrier_id, limit=10_000) if e.kind == kind]


def _moves(snapshots: Iterable[int | None]) -> list[int]:
    """A barrier that leaves a table as it is does not move it."""
    moves: list[int] = []
    for snapshot in snapshots:
        if snapshot is not None and (not moves or moves[-1] != snapshot):
            moves.append(snapshot)
    return moves
