"""What a reader asks for, and the answer to it, leased, once there is one that is new enough."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.errors import ConfigurationError, StaleAnswerError
from airflow_barrier.protocol.leases import Hold, Lease
from airflow_barrier.protocol.levels import Level, Resolution

#: Seconds between two looks of a reader who waits for newer data.
_LOOK_EVERY = 1.0


@dataclass(frozen=True)
class Question:
    """See :func:`~airflow_barrier.reading.session.consistent_session`. Raises ConfigurationError."""

    topology: str
    level: Level
    tables: Sequence[str] | None
    at: int | datetime | None
    not_older_than: timedelta | None
    wait: timedelta
    revision: int | None = None

    def __post_init__(self) -> None:
        where = f"topology {self.topology}"
        check_age_asked(where, self.at, self.not_older_than, self.wait)
        if self.not_older_than is not None and self.level is Level.READ_UNCOMMITTED:
            raise ConfigurationError(
                f"{where}: expected not_older_than=... at a level that reads one barrier, found {self.level.value}, "
                "where each table is at its own; ask at read_committed or repeatable_read (level=...)"
            )


def check_age_asked(where: str, at: Any, not_older_than: Any, wait: Any) -> None:
    """Raise :class:`ConfigurationError` unless these go together. ``where``: who asks."""
    for name, value in (("not_older_than", not_older_than), ("wait", wait)):
        if not isinstance(value, timedelta) and not (value is None and name == "not_older_than"):
            raise ConfigurationError(
                f"{where}: {name}: expected a timedelta, found {value!r}; pass timedelta(seconds=...) for instance"
            )
    if at is not None and not_older_than is not None:
        raise ConfigurationError(
            f"{where}: expected either at=... or not_older_than=..., found both; a barrier of the past does not get "
            "newer"
        )
    if wait and not_older_than is None:
        raise ConfigurationError(
            f"{where}: expected wait=... with not_older_than=..., which says what is waited for, found it without; say "
            "how old the answer may be, or leave it out"
        )


@dataclass(frozen=True)
class Held:
    """An answer and its lease, which lives from ``since`` on, by this process's clock (`time.monotonic`)."""

    resolution: Resolution
    lease: Lease
    since: float


def resolved(deployment: Deployment, question: Question, hold: Hold) -> Held:
    """The answer, held; waits for one that is new enough. Raises StaleAnswerError."""
    from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

    looks = Retrying(
        retry=retry_if_exception_type(StaleAnswerError),
        stop=stop_after_delay(question.wait.total_seconds()),
        wait=wait_fixed(_LOOK_EVERY),
        reraise=True,
    )
    return looks(_look, deployment, question, hold)


def _look(deployment: Deployment, question: Question, hold: Hold) -> Held:
    since = time.monotonic()
    found = deployment.meta.answers.resolve(
        question.topology, question.level, question.tables, at=question.at, revision=question.revision, hold=hold
    )
    assert found.lease is not None  # it was asked for
    try:
        _check_age(found, question)
    except StaleAnswerError:
        deployment.meta.leases.release(found.lease.lease_id)
        raise
    return Held(found, found.lease, since)


def _check_age(found: Resolution, question: Question) -> None:
    if question.not_older_than is None:
        return
    if found.timestamp is None:
        there = "that no barrier is there yet"
    elif found.resolved_at - found.timestamp > question.not_older_than:
        there = f"barrier {found.barrier_id} of {found.timestamp:%Y-%m-%d %H:%M:%S%z}"
        there += f", which is {found.resolved_at - found.timestamp} old"
    else:
        return
    raise StaleAnswerError(  # safety: old-answer-is-told
        f"topology {question.topology} at {question.level.value}: expected an answer not older than "
        f"{question.not_older_than}, found {there}; wait for the next barrier (wait=...), or allow for an older one"
    )
