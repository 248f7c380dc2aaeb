"""What taking existing tables into a topology changes: found out first, then shown or done."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from airflow_barrier.coordinator.creating import catalog_in_name, find_declared, with_declaration
from airflow_barrier.coordinator.cuts import source_fault
from airflow_barrier.coordinator.delivering import sink_fault
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.joining import never_opened
from airflow_barrier.coordinator.starting import rows_of
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import SinkDeclaration
from airflow_barrier.protocol.errors import MissingTableError, TopologyError, UnknownTopologyError
from airflow_barrier.protocol.table import Table
from airflow_barrier.protocol.topology import Fragment, Job, Topology


@dataclass(frozen=True)
class TableStep:
    """One table that jobs of the DAGs write or read.

    ``rows`` and ``format_version`` are None where the table is not there; ``rows`` also where it does not say.
    ``deletes_old_metadata``: whether its commits delete what describes older and older states of it; None: nobody has
    said, so that all of it stays. ``start``: whether the job that writes it has to say `start_from`, has said it, or
    need not. ``problem``: what keeps the table from taking part. ``will_be_made``: it is not there, and is declared
    with its columns.
    """

    table: str
    topology: str
    exists: bool
    snapshot: int | None
    rows: int | None
    format_version: int | None
    wap_enabled: bool
    deletes_old_metadata: bool | None
    start: str
    writer: Job | None
    readers: tuple[Job, ...]
    problem: str | None
    will_be_made: bool = False

    @property
    def enables_wap(self) -> bool:
        """True if write-audit-publish is to be switched on, which changes nothing for anybody else."""
        return self.exists and not self.wap_enabled

    @property
    def bounds_metadata(self) -> bool:
        """True if old metadata is to go from now on, which changes nothing for who reads or writes the table."""
        return self.exists and self.deletes_old_metadata is None


@dataclass(frozen=True)
class AdoptionPlan:
    """``problems`` are those of the topologies as a whole; ``notes`` are worth knowing, and hinder nothing."""

    steps: tuple[TableStep, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def can_be_done(self) -> bool:
        return not self.problems and not any(step.problem for step in self.steps)


def plan_adoption(
    deployment: Deployment,
    fragments: Sequence[Fragment],
    sinks: Sequence[tuple[str, SinkDeclaration, Credentials | None]] = (),
    joined: Collection[str] = (),
) -> AdoptionPlan:
    """Plan the changes by the DAGs' ``fragments``, together with what is registered; and find the faults that keep
    their sources from being cut, and their ``sinks``, each with its topology, from taking what they are to get. Changes
    nothing.

    ``joined``: topologies whose barriers none of the DAGs opens.
    """
    steps: list[TableStep] = []
    problems: list[str] = []
    notes: list[str] = []
    claims = deployment.topologies_by_table()
    by_name = {table.name: table for fragment in fragments for table in fragment.tables}
    for name in sorted({fragment.topology for fragment in fragments}):
        if name in joined and (unopened := never_opened(deployment, name)) is not None:
            notes.append(f"{_dags(fragments, name)}: {unopened}")
        own = [job for fragment in fragments if fragment.topology == name for job in fragment.jobs]
        registered = _registered(deployment, name)
        others = [job for job in registered if job.owner not in {job.owner for job in own}]
        union = [*others, *own]
        others_write = {outlet for job in others for outlet in job.outlets}
        waiting = _waiting(own, others_write)
        notes += [
            f"job {job.name} (DAG {job.owner}) waits until a DAG with a job that writes "
            f"{', '.join(waiting[job.name])} has run"
            for job in own
            if job.name in waiting
        ]
        try:
            Topology.of(name, [job for job in union if job.name not in waiting])
        except TopologyError as error:
            problems.append(str(error))
        touched = sorted({table for job in own for table in (*job.outlets, *job.inlets)})
        steps += [
            _step(deployment, name, table, by_name.get(table), union, registered, claims.get(table, name))
            for table in touched
        ]
    problems += _source_faults(deployment, [job for fragment in fragments for job in fragment.jobs])
    faults = [sink_fault(deployment, *sink, by_name) for sink in sinks]
    problems += [fault for fault in faults if fault is not None]
    return AdoptionPlan(tuple(steps), tuple(problems), tuple(notes))


def _source_faults(deployment: Deployment, jobs: Sequence[Job]) -> list[str]:
    """Each with the DAGs whose jobs read the source."""
    sources = {external.name: external for job in jobs for external in job.externals}
    faults = []
    for name, declared in sources.items():
        fault = source_fault(deployment, declared)
        if fault is not None:
            dags = sorted({job.owner for job in jobs if name in {external.name for external in job.externals}})
            faults.append(f"{fault} (DAG {', '.join(dags)})")
    return faults


def _dags(fragments: Iterable[Fragment], topology: str) -> str:
    return ", ".join(f"DAG {each.owner}" for each in fragments if each.topology == topology)


def _waiting(jobs: Sequence[Job], others_write: set[str]) -> dict[str, list[str]]:
    """Jobs that cannot start yet, and what they wait for: tables that nobody writes, or that such a job writes."""
    ready: list[Job] = []
    while True:
        written = others_write.union(*(job.outlets for job in ready))
        more = [job for job in jobs if job not in ready and written.issuperset(job.inlets)]
        if not more:
            break
        ready += more
    return {job.name: [table for table in job.inlets if table not in written] for job in jobs if job not in ready}


def carry_out(deployment: Deployment, plan: AdoptionPlan) -> tuple[str, ...]:
    """Switch write-audit-publish on where it is off, and the deletion of old metadata where nobody has said.

    Returns these tables. Again is fine.
    """
    tables = tuple(step.table for step in plan.steps if step.enables_wap or step.bounds_metadata)
    if tables:
        deployment.tables.take_in(tables)
    return tables


def _registered(deployment: Deployment, topology: str) -> Sequence[Job]:
    try:
        return deployment.meta.topologies.get(topology).jobs
    except UnknownTopologyError:
        return ()


def _step(
    deployment: Deployment,
    topology: str,
    table: str,
    declared: Table | None,
    union: Iterable[Job],
    registered: Iterable[Job],
    claimed_by: str,
) -> TableStep:
    union = tuple(union)
    writer = next((job for job in union if table in job.outlets), None)
    readers = tuple(job for job in union if table in job.inlets)
    problem = None
    if claimed_by != topology:
        problem = f"it belongs to topology {claimed_by}; a table belongs to one: take it out there first"
    found = find_declared(deployment, declared) if declared is not None else None
    if found is not None:
        problem = problem or found.fault
    try:
        iceberg = deployment.tables.load(table)
    except MissingTableError as error:
        if found is None:
            missing = error if writer is None else with_declaration(error)
            problem = problem or catalog_in_name(deployment, table) or str(missing)
        made = problem is None
        return TableStep(
            table, topology, False, None, None, None, False, None, "-", writer, readers, problem, will_be_made=made
        )
    main = deployment.tables.mains([table])[table]
    rows = rows_of(iceberg, main)
    start = _start(writer, joined=any(table in job.outlets for job in registered), rows=rows)
    if start == "needed" and writer is not None and problem is None:
        problem = f"it holds rows: job {writer.name} has to say start_from, see docs/adopting.md"
    return TableStep(
        table=table,
        topology=topology,
        exists=True,
        snapshot=main,
        rows=rows,
        format_version=iceberg.metadata.format_version,
        wap_enabled=deployment.tables.wap_enabled([table])[table],
        deletes_old_metadata=deployment.tables.deletes_old_metadata([table])[table],
        start=start,
        writer=writer,
        readers=readers,
        problem=problem,
    )


def _start(writer: Job | None, joined: bool, rows: int | None) -> str:
    if joined or writer is None:
        return "joined" if joined else "-"
    if writer.start_from is not None and not (writer.from_history and rows):
        return ", ".join(f"{inlet} {position}" for inlet, position in writer.start_from.items()) or "declared"
    return "earliest" if rows == 0 or not (writer.inlets or writer.externals) else "needed"
