"""The step that moves tables, which barriers and revisions are published by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.errors import BarrierError, HeadMovedError
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import Revision
from airflow_barrier.tables.port import Publication

if TYPE_CHECKING:
    from sqlalchemy import Connection

#: How often a publisher looks because something was published or decided, or a table moved, under its hands.
LOOKS = 3


def publish(
    deployment: Deployment,
    publications: Sequence[Publication],
    swapping: Callable[[], AbstractContextManager[Connection | None]],
) -> None:
    """Move the tables, and write down in the MetaService that they are: in one transaction where both share a database.

    ``swapping``: the transaction that writes it down; None, and nothing moves, if somebody else has done so meanwhile.
    """
    if not deployment.shares_database:
        deployment.tables.publish(publications)
        with swapping():
            return
    # what takes time is done before the transaction begins
    with deployment.tables.staging(publications) as staging, swapping() as connection:
        if connection is not None:
            deployment.tables.publish(publications, connection, staging)


def looks_ran_out(what: Barrier | Revision, met: BarrierError | None, verb: str) -> HeadMovedError:
    """The error of a publisher that saw something move at each look. ``verb``: what to do once more."""
    return HeadMovedError(
        f"{what}: expected no table to change between the look and the publish, found changes at each of {LOOKS} "
        f"looks, the last one: {met}. {verb} again; if this repeats, find out who writes to these tables"
    )
