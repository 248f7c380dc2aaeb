"""What a person asks of a revision, and what it would do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime

from airflow_barrier.protocol.records import Barrier, Cut
from airflow_barrier.protocol.revisions import MAX_REPLAY_BARRIERS, RevisionMode, TableCorrection
from airflow_barrier.protocol.topology import Job


@dataclass(frozen=True)
class Wanted:
    """A person's request for a revision.

    ``first`` and ``last``: the days to correct, both included, as dates (UTC) or aware datetimes; or barriers' numbers.
    ``changed``: the jobs whose code or input was corrected, ``tables``: the same by a table that each of them writes;
    neither: all that read external sources, so everything. Jobs that wait for their history join by it: ``first`` None
    is then the first barrier that has their inlets, and ``mode`` is HISTORY whatever was said.
    ``corrections`` replace epochs of root tables; ``reused``: root tables whose epochs are applied again as they were,
    without asking their sources; ``recut``: sources whose cuts are made anew at the barriers from ``first`` to
    ``last``, so that items may leave and join. ``mode`` FULL begins at ``first``, or at the first barrier that can be
    read if that is None, with empty tables, and all that came before as one epoch. ``accept_pause``: barriers may wait
    until it is published, however long that takes.
    """

    topology: str
    first: date | datetime | int | None
    last: date | datetime | int | None = None
    changed: Sequence[str] = ()
    tables: Sequence[str] = ()
    corrections: Sequence[TableCorrection] = ()
    reused: Sequence[str] = ()
    recut: Sequence[str] = ()
    mode: RevisionMode = RevisionMode.INCREMENTAL
    max_replay_barriers: int = MAX_REPLAY_BARRIERS
    accept_pause: bool = False


@dataclass(frozen=True)
class PlannedInput:
    """The origin of the rows of a root job's epochs: ``cut`` (the source, read again), ``recut`` (the source, after it
    was cut anew), ``correction`` or ``reused``.

    ``barriers``: at which barriers; ``detail`` for people.
    """

    job: str
    kind: str
    barriers: tuple[int, ...]
    detail: str


@dataclass(frozen=True)
class PlannedTable:
    """One table of the plan. ``rows``: how many it has at the head; ``epoch_rows``: how many came with the barriers
    that are replayed, as far as its snapshots tell (None: they do not).
    """

    table: str
    job: str
    owner: str
    rows: int | None
    epoch_rows: int | None


@dataclass(frozen=True)
class PlannedRecut:
    """The cut of a source at a barrier, made anew, and which items leave the epoch by it, and join it."""

    barrier_id: int
    cut: Cut
    leaving: tuple[str, ...]
    joining: tuple[str, ...]


@dataclass(frozen=True)
class RevisionPlan:
    """A revision's plan. ``barriers`` are replayed in this order; ``window`` are those that a person asked for.

    ``untouched``: tables that stay as they are. ``code_changed``: jobs whose code differs from what computed the head.
    ``notes``: what its author should know; ``pace``: how replay and arrival compare. ``joining``: the tables that are
    in no barrier yet and join by it, and what `main` of each is at.
    """

    wanted: Wanted
    predecessor: Barrier
    barriers: tuple[Barrier, ...]
    window: tuple[Barrier, ...]
    head: Barrier
    jobs: tuple[Job, ...]
    changed: tuple[str, ...]
    tables: tuple[PlannedTable, ...]
    untouched: tuple[str, ...]
    inputs: tuple[PlannedInput, ...]
    topology_version: int
    code_changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    recuts: tuple[PlannedRecut, ...] = ()
    joining: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def owners(self) -> tuple[str, ...]:
        """The DAGs that have to run, in the order of their names."""
        return tuple(sorted({job.owner for job in self.jobs}))
