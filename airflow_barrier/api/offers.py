"""What a caller may do now about a barrier, a revision or a lease, in sentences with what will happen then."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from airflow_barrier.api import models
from airflow_barrier.api.models import Act, Action
from airflow_barrier.api.sight import Sight
from airflow_barrier.coordinator.resolving import InTheWay
from airflow_barrier.protocol.leases import Lease
from airflow_barrier.protocol.records import Barrier, BarrierKind
from airflow_barrier.protocol.revisions import MAX_REPLAY_BARRIERS, Revision, RevisionState
from airflow_barrier.protocol.states import STAGING_BARRIERS, UNCOMMITTED_BARRIERS, BarrierState, Decision

#: Numbers that are listed one by one.
_LISTED = 3
_TO_PUBLISH = frozenset({BarrierState.PRECOMMIT, BarrierState.COMMITTING})


@dataclass(frozen=True)
class Reach:
    """The reach of an action at a barrier: the barriers in flight, oldest first, and the revision under way.

    ``versions``: of the topology, as of all of these and of the barrier itself.
    """

    barriers: Sequence[Barrier]
    revision: Revision | None
    versions: Collection[int]


def reach(sight: Sight, barrier: Barrier) -> Reach:
    meta = sight.meta
    found, revision = [*meta.barriers.uncommitted(sight.name)], meta.revisions.under_way(sight.name)
    replayed = [] if revision is None else meta.overviews.revised(sight.name, revision.revision)[1]
    return Reach(found, revision, {each.topology_version for each in (barrier, *found, *replayed)})


def of_barrier(sight: Sight, barrier: Barrier) -> list[Action]:
    if barrier.state is BarrierState.COMMIT:
        return _revise(sight, barrier)
    if barrier.state not in UNCOMMITTED_BARRIERS:
        return []
    near = reach(sight, barrier)
    if not sight.edits_all(near.versions, near.revision):
        return []
    actions = []
    up_to = [each for each in near.barriers if each.barrier_id <= barrier.barrier_id]
    if up_to and all(each.state in _TO_PUBLISH for each in up_to):
        actions.append(_commit(sight, up_to))
    if barrier.state is BarrierState.BLOCKED:
        says = (
            "Somebody else changed a table after the commit was decided: look which tables are in the way, and decide "
            "about each whose rows stand."
        )
        actions.append(Action(action=Act.RESOLVE, label="Decide about its tables", says=says))
    if barrier.state in STAGING_BARRIERS:
        actions.append(_abort(near, barrier))
    return actions


def _revise(sight: Sight, barrier: Barrier) -> list[Action]:
    if barrier.kind is not BarrierKind.EPOCH or barrier.expiring_at is not None:
        return []
    later = sight.meta.barriers.epochs(sight.name, first=barrier.barrier_id, limit=MAX_REPLAY_BARRIERS)
    if sight.meta.revisions.under_way(sight.name) or not sight.edits_all({each.topology_version for each in later}):
        return []
    says = (
        "Has this barrier and all later ones computed again by their DAGs' runs, once you have seen the plan. Readers "
        "see what was until all of it is published in one step."
    )
    return [Action(action=Act.REVISE, label="Correct from here…", says=says)]


def _commit(sight: Sight, barriers: Sequence[Barrier]) -> Action:
    which = listed("barrier", [each.barrier_id for each in barriers])
    versions = sight.versions({each.topology_version for each in barriers})
    tables = {table for each in barriers for table in versions[each.topology_version].tables}
    count = f"{len(tables)} table{'' if len(tables) == 1 else 's'}"
    says = (
        f"Publishes {which}, with {count}: everybody reads it then. Checks that a DAG makes before its commit are not "
        "made; events of Airflow's assets come with the next commit task."
    )
    return Action(action=Act.COMMIT, label=f"Commit {which}", says=says)


def _abort(near: Reach, barrier: Barrier) -> Action:
    gone = [each.barrier_id for each in near.barriers if each.barrier_id >= barrier.barrier_id]
    which = listed("barrier", gone or [barrier.barrier_id])
    says = f"Gives up {which}; {joins(gone)}."
    if near.revision is not None and gone and near.revision.first_barrier <= gone[-1]:
        says += f" What revision {near.revision.revision} has computed of that is given up, too."
    return Action(action=Act.ABORT, label=f"Abort {which}", says=says)


def joins(aborted: Sequence[int]) -> str:
    return f"{'their epochs join' if len(aborted) > 1 else 'its epoch joins'} the next barrier's"


def of_revision(sight: Sight, revision: Revision, versions: Collection[int]) -> list[Action]:
    """``versions``: of the topology, as of the barriers that it computes."""
    if revision.state is not RevisionState.STAGING or not sight.edits_all(versions, revision):
        return []
    count = f"{len(revision.tables)} table{'' if len(revision.tables) == 1 else 's'}"
    says = (
        f"Gives up revision {revision.revision}: what it has computed of {count} from barrier {revision.first_barrier} "
        "on is lost. Readers have seen nothing of it."
    )
    window = listed("barrier", range(revision.first_barrier, revision.window_end + 1))
    wakes = (
        f"Has the runs of {window} run again that have not computed it: those that failed, or that nobody has woken. "
        "Runs that are on their way are left alone."
    )
    return [
        Action(action=Act.CANCEL, label=f"Cancel revision {revision.revision}", says=says),
        Action(action=Act.WAKE, label="Wake its runs", says=wakes),
    ]


def of_leases(sight: Sight, leases: Sequence[Lease]) -> dict[int, list[Action]]:
    """Map each lease's number to its actions."""
    versions = versions_of(sight, leases)
    editable = {each for each in set(versions.values()) if sight.edits_all(each)}
    return {each.lease_id: [_release(each)] if versions[each.lease_id] in editable else [] for each in leases}


def versions_of(sight: Sight, leases: Sequence[Lease]) -> dict[int, frozenset[int]]:
    """Map each lease's number to the topology's versions as of the first and the last barrier that it holds."""
    ends = {number for each in leases for number in (each.barrier_id, each.through_id)}
    found = {each.barrier_id: each.topology_version for each in sight.meta.overviews.at(sight.name, ends)}
    return {each.lease_id: frozenset({found[each.barrier_id], found[each.through_id]}) for each in leases}


def _release(lease: Lease) -> Action:
    which = listed("barrier", range(lease.barrier_id, lease.through_id + 1))
    says = (
        f"Lease {lease.lease_id} keeps {which} from being expired no longer; its reader is told at its next renewal, "
        "and has to read anew."
    )
    return Action(action=Act.RELEASE, label=f"Release lease {lease.lease_id}", says=says)


def choice(barrier: Barrier, table: InTheWay, decision: Decision) -> models.Choice:
    """Describe what becomes of whose rows."""
    name = table.table
    if table.finding is None:
        says = f"Nothing is in the way any more: what {barrier} staged is published by its next commit."
        return models.Choice(decision=decision, label="Go on", says=says)
    theirs, ours = _snapshot(table.theirs), _snapshot(table.ours)
    if decision is Decision.KEEP_OURS:
        says = f"{name} is published as this barrier staged it, {ours}. Theirs, {theirs}, no longer counts"
        says += f", and is kept by the tag {table.tag}." if table.theirs is not None else "."
        return models.Choice(decision=decision, label=f"Keep ours of {name}", says=says)
    says = f"{name} stays at theirs, {theirs}. This epoch's rows of it, {ours}, are NOT published"
    says += f", and are kept by the tag {table.tag}." if table.ours is not None else "."
    if table.computed_from_ours:
        says += f" Computed from ours, and published as they are: {', '.join(table.computed_from_ours)}."
    says += " What later barriers computed from ours is computed again: clear those tasks."
    return models.Choice(decision=decision, label=f"Adopt theirs of {name}", says=says)


def _snapshot(snapshot_id: int | None) -> str:
    return "no snapshot" if snapshot_id is None else f"snapshot {snapshot_id}"


def listed(what: str, numbers: Sequence[int]) -> str:
    """Numbers, as a person says them.

    >>> listed("barrier", [12]), listed("barrier", [12, 13, 14])
    ('barrier 12', 'barriers 12, 13 and 14')
    >>> listed("barrier", [12, 14, 15, 16])
    '4 barriers, 12 to 16'
    """
    if len(numbers) == 1:
        return f"{what} {numbers[0]}"
    if len(numbers) <= _LISTED:
        *first, last = map(str, numbers)
        return f"{what}s {', '.join(first)} and {last}"
    return f"{len(numbers)} {what}s, {numbers[0]} to {numbers[-1]}"
