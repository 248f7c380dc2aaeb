"""A commit, the publish of a revision, an expiry, a recovery, or the folding of a journal, that dies in a process of
its own: the test runner cannot fork.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from airflow_barrier.coordinator import trimmed_journal
from airflow_barrier.coordinator.committing import commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.expiring import expire
from airflow_barrier.coordinator.recovering import recover
from airflow_barrier.coordinator.revisions.publish import publish_revision
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.metaservice.commits import Publishing
from airflow_barrier.metaservice.expiring import Expiry
from airflow_barrier.metaservice.recovering import Recovery
from airflow_barrier.metaservice.revisions import Revisions
from airflow_barrier.protocol.retention import Retention
from airflow_barrier.tables._local_files import LocalFiles
from airflow_barrier.tables._rest_server import RestServer
from airflow_barrier.tables._sql_catalog import SqlTables
from airflow_barrier.tables.iceberg import IcebergTables
from tests.races.racers import PROCESSES
from tests.support.waiting import patience

#: A REST catalog that does not publish in one step is asked table by table.
_PUBLISHING = (IcebergTables, "publish"), (IcebergTables, "write_text"), (RestServer, "commit")


def killed_at(point: int, settings: Settings, topology: str) -> bool:
    """Recover in a child that gets a real SIGKILL before or after a step; False: it had no such step, and ended."""
    return _killed(_recover, point, settings, topology)


def killed_committing_at(point: int, settings: Settings, topology: str, barrier_id: int) -> bool:
    """The same for a committer."""
    return _killed(_commit, point, settings, topology, barrier_id)


def killed_swapping_at(point: int, settings: Settings, topology: str, revision: int) -> bool:
    """The same for the publisher of a revision."""
    return _killed(_swap, point, settings, topology, revision)


def killed_expiring_at(point: int, settings: Settings, topology: str) -> bool:
    """The same for an expiry of all but the newest two barriers."""
    return _killed(_expire, point, settings, topology)


def keep_two(deployment: Deployment, topology: str) -> None:
    """Such an expiry. Snapshots are taken out by pyiceberg, which leaves their files."""

    def take_out(table: str, snapshot_ids: Sequence[int]) -> str:
        deployment.tables.load(table).maintenance.expire_snapshots().by_ids(list(snapshot_ids)).commit()
        return "no files"

    expire(deployment, topology, Retention(2), take_out, actor="story")


def killed_folding_at(point: int, settings: Settings, topology: str, span: int, trimmed: Sequence[int]) -> bool:
    """The same for :func:`fold`."""
    return _killed(_fold, point, settings, topology, span, trimmed)


def _killed(work: Callable[..., None], *arguments: object) -> bool:
    child = PROCESSES.Process(target=work, args=arguments, daemon=True)
    child.start()
    child.join(patience())
    assert child.exitcode in (0, -signal.SIGKILL), f"the child failed by itself: {child.exitcode}"
    return child.exitcode != 0


def _recover(point: int, settings: Settings, topology: str) -> None:
    write, publish = ((IcebergTables, name) for name in ("write_text", "publish"))
    _watch(point, (SqlTables, "_reattach"), write, publish, (Recovery, "put_back"))
    deployment = Deployment.connect(settings)
    recover(deployment, topology, actor="child", reason="test")
    deployment.close()


def _commit(point: int, settings: Settings, topology: str, barrier_id: int) -> None:
    _watch(point, (Publishing, "begin"), *_PUBLISHING)
    deployment = Deployment.connect(settings)
    commit_barrier(deployment, topology, barrier_id, actor="child")
    deployment.close()


def _swap(point: int, settings: Settings, topology: str, revision: int) -> None:
    _watch(point, (Revisions, "begin_swap"), *_PUBLISHING)
    deployment = Deployment.connect(settings)
    publish_revision(deployment, topology, revision, actor="child")
    deployment.close()


def _expire(point: int, settings: Settings, topology: str) -> None:
    _watch(point, *((Expiry, name) for name in ("expire", "expired", "trim")), (IcebergTables, "drop_tags"))
    deployment = Deployment.connect(settings)
    keep_two(deployment, topology)
    deployment.close()


def _fold(point: int, settings: Settings, topology: str, span: int, trimmed: Sequence[int]) -> None:
    _watch(point, (IcebergTables, "write_text"), (LocalFiles, "delete"))
    trimmed_journal.SPAN = span
    deployment = Deployment.connect(settings)
    trimmed_journal.fold(deployment, topology, trimmed)
    deployment.close()


def _watch(point: int, *changing: tuple[type, str]) -> None:
    """From here on the process is killed at that point: before or after one of the steps that change something."""
    steps = count()

    def step(work: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            if next(steps) == point:
                os.kill(os.getpid(), signal.SIGKILL)
            done = work(*arguments, **named)
            if next(steps) == point:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return watched

    for owner, name in changing:
        setattr(owner, name, step(getattr(owner, name)))
