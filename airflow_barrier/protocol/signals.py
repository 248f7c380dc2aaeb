"""What somebody is told of a topology: a kind, a moment, and a sentence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

from airflow_barrier.protocol.errors import ConfigurationError

#: failed: a job has failed at a barrier that waits for it, and is not tried again. late: something else holds up a
#: barrier, or readers, for longer than is usual. blocked: somebody else changed a table.
#: aborted: a barrier was given up. delivery_failing: a sink fails, or lacks barriers for long. revised: barriers that
#: were computed again are what readers have.
SignalKind = Literal["failed", "late", "blocked", "aborted", "delivery_failing", "revised"]
KINDS: tuple[SignalKind, ...] = get_args(SignalKind)


@dataclass(frozen=True)
class Signal:
    """One thing to be told, in a sentence (``summary``). ``at``: its moment, by the MetaService's clock (UTC).

    ``barrier_id`` None: it is of no barrier. ``dag``: whose task is to be looked at, if it is known.
    """

    kind: SignalKind
    topology: str
    barrier_id: int | None
    at: datetime
    dag: str | None
    summary: str


def check_kinds(kinds: Iterable[str]) -> None:
    """Raises ConfigurationError for what is no kind of signal."""
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise ConfigurationError(
            f"on: expected some of {', '.join(KINDS)}, found {', '.join(map(repr, unknown))}; correct the name"
        )
