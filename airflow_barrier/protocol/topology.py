"""The graph of tables and jobs: what is declared, what is derived from it, and what is refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError as _GraphCycle
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Any

from airflow_barrier.protocol.errors import (
    CycleError,
    DuplicateJobError,
    JobWithoutOutletsError,
    SecondWriterError,
    TopologyError,
    UnknownTableError,
)
from airflow_barrier.protocol.names import is_topology_name, name_fault, source_fault, table_fault
from airflow_barrier.protocol.starting import HISTORY
from airflow_barrier.protocol.table import Table


@dataclass(frozen=True)
class ExternalSource:
    """An input outside the topology, as declared: ``kind`` names the adapter, ``options`` are its JSON settings.

    ``name`` is unique in a topology: two jobs that name the same source share its cut.
    """

    name: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Job:
    """One ETL job: it turns ``inlets`` (tables) and ``externals`` into ``outlets`` (tables).

    ``owner`` is the DAG that runs it. Tables are named ``namespace.table``, without the catalog. ``start_from``: what
    of each inlet is in the outlets already when the job joins, see :mod:`airflow_barrier.protocol.starting`.
    ``freshness``: readers of the outlets are to have nothing that is older (seconds; None: nobody has said).
    """

    name: str
    owner: str
    inlets: tuple[str, ...] = ()
    outlets: tuple[str, ...] = ()
    externals: tuple[ExternalSource, ...] = ()
    start_from: Mapping[str, Any] | None = field(default=None, hash=False, metadata={"omit_none": True})
    freshness: float | None = field(default=None, metadata={"omit_none": True})

    @property
    def from_history(self) -> bool:
        """Return whether it joins a running topology only once its tables were computed at the barriers of the past."""
        return self.start_from is not None and HISTORY in self.start_from.values()


@dataclass(frozen=True)
class Fragment:
    """The part of a topology that one DAG adds: its jobs.

    ``tables``: those of its outlets that are declared with their columns. They are not registered: who opens or joins
    has them from the DAG.
    """

    topology: str
    owner: str
    jobs: tuple[Job, ...]
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Topology:
    """A named, valid graph. Build it with :meth:`of`, which refuses what cannot work.

    >>> t = Topology.of("shopping", [Job("load", "dag", outlets=("shop.a",)),
    ...                              Job("sum", "dag", inlets=("shop.a",), outlets=("shop.b",))])
    >>> sorted(t.root_tables), t.writer("shop.b").name
    (['shop.a'], 'sum')
    """

    name: str
    jobs: tuple[Job, ...]

    @classmethod
    def of(cls, name: str, jobs: Iterable[Job]) -> Topology:
        """A validated topology; jobs are kept in the order of their names.

        Raises a :class:`TopologyError` of its own for each thing that is wrong.
        """
        jobs = tuple(jobs)
        check_names(name, jobs)
        topology = cls(name, tuple(sorted(jobs, key=lambda job: job.name)))
        topology._check_jobs()
        topology._check_tables()
        topology._check_cycles()
        return topology

    # --- what is derived --------------------------------------------------------------------------

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """All tables that the topology writes, in the order of their names."""
        return tuple(sorted(outlet for job in self.jobs for outlet in job.outlets))

    @cached_property
    def root_tables(self) -> frozenset[str]:
        """Tables written by jobs that read external sources."""
        return frozenset(outlet for job in self.jobs if job.externals for outlet in job.outlets)

    @cached_property
    def externals(self) -> tuple[ExternalSource, ...]:
        """Every external source once, in the order of their names."""
        return tuple(sorted({s.name: s for job in self.jobs for s in job.externals}.values(), key=lambda s: s.name))

    @cached_property
    def freshness(self) -> float | None:
        """The strictest of its jobs', since all tables become readable at once; None: no job has one."""
        return min((job.freshness for job in self.jobs if job.freshness is not None), default=None)

    @cached_property
    def _writers(self) -> dict[str, Job]:
        return {outlet: job for job in self.jobs for outlet in job.outlets}

    @cached_property
    def _by_name(self) -> dict[str, Job]:
        return {job.name: job for job in self.jobs}

    @cached_property
    def _readers(self) -> dict[str, list[Job]]:
        readers: dict[str, list[Job]] = {}
        for job in self.jobs:
            for table in dict.fromkeys(job.inlets):
                readers.setdefault(table, []).append(job)
        return readers

    def job(self, name: str) -> Job:
        """The job of that name. Raises :class:`TopologyError` naming the jobs there are."""
        try:
            return self._by_name[name]
        except KeyError:
            names = ", ".join(self._by_name)
            raise TopologyError(f"topology {self.name} has no job {name!r}; it has: {names}") from None

    def writer(self, table: str) -> Job:
        """The one job that writes ``table``. Raises :class:`UnknownTableError`."""
        try:
            return self._writers[table]
        except KeyError:
            raise UnknownTableError(
                f"table {table} is not in topology {self.name}; its tables are: {', '.join(self.tables)}"
            ) from None

    def _owners(self, jobs: Iterable[str]) -> list[str]:
        return sorted({self.job(name).owner for name in jobs})

    def readers(self, table: str) -> tuple[Job, ...]:
        """The jobs that read ``table``."""
        return tuple(self._readers.get(table, ()))

    # --- what is refused --------------------------------------------------------------------------

    def _check_jobs(self) -> None:
        seen: dict[str, Job] = {}
        for job in self.jobs:
            if job.name in seen:
                raise DuplicateJobError(
                    f"topology {self.name}: job {job.name!r} is declared by DAG {seen[job.name].owner} and by DAG "
                    f"{job.owner}; give one of them another name"
                )
            seen[job.name] = job
            if not job.outlets:
                raise JobWithoutOutletsError(
                    f"topology {self.name}: job {job.name} (DAG {job.owner}) declares no outlets; "
                    "a job takes part in barriers by the tables it writes: add outlets=[...]"
                )

    def _check_tables(self) -> None:
        writers: dict[str, Job] = {}
        for job in self.jobs:
            for outlet in job.outlets:
                if outlet in writers:
                    raise SecondWriterError(  # safety: one-writer-a-table
                        f"topology {self.name}: table {outlet} is written by job {writers[outlet].name} "
                        f"(DAG {writers[outlet].owner}) and by job {job.name} (DAG {job.owner}); "
                        "a table has one writer: merge the jobs or write to two tables"
                    )
                writers[outlet] = job
        externals: dict[str, tuple[Job, ExternalSource]] = {}
        for job in self.jobs:
            for table in job.inlets:
                if table not in writers:
                    raise UnknownTableError(
                        f"topology {self.name}: job {job.name} (DAG {job.owner}) reads table {table}, which no job "
                        "writes; register the job that writes it, or declare the table as an external source "
                        f"(IcebergTable({table!r}))"
                    )
            for source in job.externals:
                other_job, other = externals.setdefault(source.name, (job, source))
                if other != source:
                    raise TopologyError(
                        f"topology {self.name}: jobs {other_job.name} (DAG {other_job.owner}) and {job.name} (DAG "
                        f"{job.owner}) declare external source {source.name!r} with different settings; sources of one "
                        "name share one cut: "
                        "make them equal or rename one"
                    )
        for job, source in externals.values():
            letters = source.options.get("dead_letters")
            writer = writers.get(letters) if letters is not None else None
            if letters is not None and (writer is None or source.name not in {each.name for each in writer.externals}):
                found = "no job that writes it" if writer is None else f"job {writer.name}, which does not read it"
                raise TopologyError(  # safety: letters-have-a-table
                    f"topology {self.name}: source {source.name} of job {job.name} (DAG {job.owner}) has "
                    f"dead_letters={letters!r}: expected a job that reads the source and writes that table, found "
                    f"{found}; add {letters!r} to the outlets of a job that reads the source"
                )

    def _check_cycles(self) -> None:
        graph = {job.name: {self._writers[table].name for table in job.inlets} for job in self.jobs}
        try:
            TopologicalSorter(graph).prepare()
        except _GraphCycle as error:
            circle: list[str] = error.args[1]  # each feeds the next
            tables = [
                next(table for table in self.job(reader).inlets if self._writers[table].name == writer)
                for writer, reader in pairwise(circle)
            ]
            raise CycleError(
                f"topology {self.name}: jobs feed each other in a circle: {' -> '.join(circle)} "
                f"(through tables {', '.join(tables)}; of DAGs {', '.join(self._owners(circle))}); break it at one of "
                "these tables"
            ) from None


def maintenance_topology(name: str, tables: Iterable[str], owner: str) -> Topology:
    """Return the topology of a maintenance barrier: a job for each table, which waits for that table and no other.

    >>> maintenance_topology("shopping", ["shop.b", "shop.a"], "upkeep").writer("shop.a").name
    'compaction of shop.a'
    """
    return Topology(
        name, tuple(Job(f"compaction of {table}", owner=owner, outlets=(table,)) for table in sorted(tables))
    )


def check_names(topology: str, jobs: Iterable[Job]) -> None:
    """See that every name can go wherever it will have to: branches, files, databases, SQL, logs.

    Raises :class:`TopologyError` that shows the name escaped.
    """
    if not is_topology_name(topology):
        raise TopologyError(
            f"topology name {topology!a}: expected a letter, then at most 99 letters, digits, '_' or '-', "
            "because it becomes part of Iceberg branch and tag names"
        )
    for job in jobs:
        names = [("job", job.name, name_fault(job.name)), ("DAG", job.owner, name_fault(job.owner))]
        names += [("table", table, table_fault(table)) for table in (*job.inlets, *job.outlets)]
        names += [("external source", source.name, source_fault(source.name)) for source in job.externals]
        for kind, name, fault in names:
            if fault is not None:
                raise TopologyError(
                    f"topology {topology}: expected a name for {kind} {name!a} that every engine, database and log can "
                    f"hold, found {fault}; rename it"
                )


def downstream_jobs(topology: Topology, *jobs: str) -> tuple[str, ...]:
    """``jobs`` and every job that depends on their tables, directly or not, nearest first."""
    found = dict.fromkeys(jobs)
    reached = deque(found)
    while reached:
        for table in topology.job(reached.popleft()).outlets:
            for reader in topology.readers(table):
                if reader.name not in found:
                    found[reader.name] = None
                    reached.append(reader.name)
    return tuple(found)
