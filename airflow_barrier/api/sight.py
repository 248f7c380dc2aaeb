"""What a caller may see of a topology: the jobs whose DAGs they may read, and what belongs to these."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Path

from airflow_barrier.api.access import Access, Wait, access_in, not_found
from airflow_barrier.api.waits import waits_of
from airflow_barrier.coordinator.awaited import Awaited
from airflow_barrier.coordinator.doing import summary_of
from airflow_barrier.coordinator.lateness import Late
from airflow_barrier.metaservice.overviews import Known, Overviews
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import MetaServiceMissingError
from airflow_barrier.protocol.records import AttemptProgress
from airflow_barrier.protocol.revisions import Revision
from airflow_barrier.protocol.states import AttemptState
from airflow_barrier.protocol.topology import Job, Topology

#: What is said instead of what other DAGs have yet to do.
_OTHERS = "tables of other DAGs"

AccessDep = Annotated[Access, Depends(access_in)]


class Sight:
    """One topology as a caller sees it. Of a DAG that was not asked about nothing is seen."""

    def __init__(self, access: Access, meta: MetaService, topology: Topology, version: int) -> None:
        self._access = access
        self.meta = meta
        #: as it is declared now, and which version that is
        self.topology = topology
        self.version = version
        self.name = topology.name
        self._asked: set[str] = set()
        self._readable: set[str] = set()
        self._editable: dict[str, bool] = {}
        self.ask(owners(topology.jobs))

    def ask(self, dags: Iterable[str]) -> None:
        """Find out about DAGs that nothing is known of yet, all at once. What asks is not in a transaction."""
        new = set(dags) - self._asked
        if new:
            self._readable |= self._access.readable(new)
            self._asked |= new

    def versions(self, numbers: Collection[int]) -> dict[int, Topology]:
        """The topology as of these versions, whose DAGs are asked about."""
        found = self.meta.overviews.together(
            lambda rows: {number: rows.topology(self.name, number) for number in numbers if number != self.version}
        )
        self.ask(job.owner for topology in found.values() for job in topology.jobs)
        return {**found, self.version: self.topology}

    def sees_all(self, dags: Iterable[str]) -> bool:
        return self._readable.issuperset(dags)

    def joining(self, revisions: Iterable[Revision]) -> Sequence[Job]:
        """The jobs that join by a revision, if one of these has jobs that are no members."""
        members = {job.name for job in self.topology.jobs}
        if members.issuperset(name for each in revisions for name in each.jobs):
            return ()
        found = self.meta.topologies.waiting(self.name)
        self.ask(owners(found))
        return found

    def edits_all(
        self, versions: Collection[int], revision: Revision | None = None, joining: Iterable[Job] = ()
    ) -> bool:
        """Return whether the caller may read and edit all DAGs that have jobs in the topology, as of these versions
        and now, or that join by ``revision``, or are ``joining``: who gives something up, publishes it, or has it
        computed again, does so for all of them.
        """
        dags = {dag for topology in self.versions(versions).values() for dag in owners(topology.jobs)} | owners(joining)
        self.ask(dags)
        if revision is not None:
            dags |= owners(job for job in self.joining([revision]) if job.name in revision.jobs)
        if not self.sees_all(dags):
            return False
        if new := dags - self._editable.keys():
            editable = self._access.editable(new)
            self._editable |= {dag: dag in editable for dag in new}
        return all(self._editable[dag] for dag in dags)

    def sees(self, dag: str) -> bool:
        return dag in self._readable

    def hidden(self, dags: Iterable[str]) -> int:
        """Return how many DAGs nothing is told of."""
        return len(set(dags) - self._readable)

    def jobs(self, topology: Topology | None = None) -> list[Job]:
        """The jobs that are seen; of ``topology`` as it was at a barrier, or as it is now."""
        return [job for job in (topology or self.topology).jobs if job.owner in self._readable]

    @property
    def tables(self) -> frozenset[str]:
        """The tables of the jobs that are seen now."""
        return frozenset(table for job in self.jobs() for table in job.outlets)

    def summary(self, attempt: AttemptProgress | None, job: Job, tables: Collection[str], *, member: bool) -> str:
        """Describe a job's work in a few words, which name none but these ``tables``."""
        if attempt is None or attempt.state is not AttemptState.REQUESTED:
            told = None if attempt is None else replace(attempt, reason=self.reason(attempt))
            return summary_of(told, job.owner, member=member)
        waits = self.waits(attempt, tables)
        return f"waits for {', '.join(waits)}" if waits else "requested"

    def waits(self, attempt: AttemptProgress, tables: Collection[str]) -> list[str]:
        """Return an attempt's unmet needs; of those that are none of ``tables`` only that there are some."""
        needs = attempt.waited_for if attempt.state is AttemptState.REQUESTED else ()
        told = [str(need) for need in needs if need.table in tables]
        return told if len(told) == len(needs) else [*told, _OTHERS]

    def waits_of(self, held_up: Iterable[Late]) -> Mapping[Awaited, Wait]:
        """Map those of these that are seen to why they do not begin. What asks is not in a transaction."""
        return waits_of(self._access, held_up, self._readable)

    def reason(self, attempt: AttemptProgress) -> str | None:
        """Return the reason why an attempt ended. That another job was staged anew is told to who may read all."""
        own = attempt.state not in (AttemptState.FENCED, AttemptState.VOIDED)
        return attempt.reason if own or self.sees_all(self._asked) else None


def owners(jobs: Iterable[Job]) -> set[str]:
    return {job.owner for job in jobs}


def known_topologies(meta: MetaService) -> list[Known]:
    """All that are declared, in the order of their names; none as long as the MetaService is not made."""
    try:
        return meta.overviews.known()
    except MetaServiceMissingError:
        return []


def seen(access: Access, known: Iterable[Known]) -> dict[str, Mapping[str, int]]:
    """Map each topology that the caller sees anything of to its DAGs that may be read, and how many tables these
    write.
    """
    known = list(known)
    readable = access.readable({dag for each in known for dag in each.dags})
    told = {each.name: {dag: count for dag, count in each.dags.items() if dag in readable} for each in known}
    return {name: dags for name, dags in told.items() if dags}


def sight(
    access: AccessDep,
    deployment: Annotated[str, Path(examples=["barrier_default"])],
    topology: Annotated[str, Path(examples=["shopping"])],
) -> Sight:
    """A dependency of routes: asked before any number is looked up. 404 if nothing of the topology is seen."""
    found = sight_of(access, access.meta_service(deployment), topology)
    if not found.jobs():
        raise not_found()
    return found


def sight_of(access: Access, meta: MetaService, topology: str) -> Sight:
    """Return the caller's sight of ``topology``. Raises UnknownTopologyError."""

    def look(rows: Overviews) -> tuple[Topology, int]:
        version = rows.version(topology)
        return rows.topology(topology, version), version

    return Sight(access, meta, *meta.overviews.together(look))


SightDep = Annotated[Sight, Depends(sight)]
