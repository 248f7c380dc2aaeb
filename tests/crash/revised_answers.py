"""What is always true of a deployment with a revision, whatever died: as people look, and at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_barrier.coordinator.deployment import with_password
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.names import parse_branch, tag_name
from airflow_barrier.protocol.revisions import RevisionState
from airflow_barrier.protocol.states import BarrierState
from tests.crash.checking import check_files, rows_at
from tests.crash.revised import COMMITTED, FIRST, Purpose, Version, revision_of
from tests.crash.shopping import COLUMNS, Row
from tests.metaservice.auditing import check_audit
from tests.revising.world import RevisedShop

#: Of `rows_at`: files never change, and those of days that are put back are the same again.
_READ: dict[str, Any] = {}


def looks(shop: RevisedShop, committed: int, versions: Sequence[Version]) -> None:
    """Each answer is one of the ``versions``, in all of its tables and at both levels: the barrier after the newest
    that is ``committed`` is PRECOMMIT.
    """
    left = list(versions)
    for level, barrier_id in ((Level.READ_COMMITTED, committed + 1), (Level.REPEATABLE_READ, committed)):
        answer = shop.deployment.meta.answers.resolve(shop.shop.name, level)
        assert answer.barrier_id == barrier_id, f"{level.value} is at {answer.barrier_id}"
        found = _rows(shop, {name: one.snapshot_id for name, one in answer.tables.items()})
        left = [version for version in left if version.at(barrier_id) == found]
        assert left, f"{level.value} at {barrier_id} is torn, or as it must not be: {found}"


def ends(shop: RevisedShop, last: int, purpose: Purpose, version: Version) -> None:
    """All is COMMIT up to the ``last`` day and as if nothing had happened, and nothing is left over."""
    revision, revised = revision_of(shop), version == purpose.new
    assert revision.state is (RevisionState.COMMIT if revised else RevisionState.CANCELLED)
    for day in range(1, last + 1):
        barrier = shop.barrier(day)
        number = int(revised and FIRST <= day <= (revision.last or 0))
        assert (barrier.state, barrier.computed_in) == (BarrierState.COMMIT, number)
        _is(shop, day, number, version if day >= FIRST else purpose.old)
        if number and day <= COMMITTED:  # the others may not have been committed before they were revised
            _is(shop, day, 0, purpose.old)
    mains = _rows(shop, shop.deployment.tables.mains(shop.shop.tables()))
    assert mains == {**{name: [] for name in COLUMNS}, **version.at(last)}
    for each in shop.shop.tables():
        table = shop.deployment.tables.load(each)
        left = [ref for ref in table.metadata.refs if parse_branch(ref) is not None]
        assert not left, f"{each}: branches {left}"
        check_files(table, _READ)
    files = [path.name for path in (shop.shop.lake / "_barrier" / shop.shop.name).glob("b*/[!.]*")]
    assert not files, f"files of committed barriers: {files}"
    settings = shop.shop.settings
    check_audit(with_password(settings.metaservice_url, settings.metaservice_password))


def _is(shop: RevisedShop, day: int, number: int, version: Version) -> None:
    """A barrier of a revision, by the map and by its tags."""
    answer = shop.deployment.meta.answers.resolve(shop.shop.name, Level.REPEATABLE_READ, at=day, revision=number)
    snapshots = {name: one.snapshot_id for name, one in answer.tables.items()}
    assert _rows(shop, snapshots) == version.at(day), (day, number)
    for name, snapshot in snapshots.items():
        tagged = shop.deployment.tables.load(name).metadata.snapshot_by_name(tag_name(shop.shop.name, day, number))
        assert tagged is not None, (day, number, name)
        assert tagged.snapshot_id == snapshot, (day, number, name)


def _rows(shop: RevisedShop, snapshots: Mapping[str, int | None]) -> dict[str, list[Row]]:
    return {
        name.rpartition(".")[2]: rows_at(shop.deployment.tables.load(name), snapshot, _READ)
        for name, snapshot in snapshots.items()
    }
