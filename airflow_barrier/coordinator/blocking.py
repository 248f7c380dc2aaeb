"""BLOCKED: a decided barrier cannot be published because somebody else changed a table. Which one, and the way out."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.errors import (
    BarrierBlockedError,
    BarrierError,
    ConfigurationError,
    ForeignWriteError,
    MissingTableError,
    RefTakenError,
    SnapshotMissingError,
    StagedTableError,
)
from airflow_barrier.protocol.names import set_aside_tag
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import BarrierState, Decision
from airflow_barrier.tables.port import Publication

log = logging.getLogger(__name__)

#: What is said about a table after the decision, and no retry mends: it is not there (or a view now), `main` or our tag
#: is somebody else's, our snapshot is gone, or was built on another state. Outages are none of these, nor are
#: credentials that the catalog refuses: nothing is wrong with a table then.
IN_THE_WAY = (MissingTableError, ConfigurationError, ForeignWriteError, SnapshotMissingError, StagedTableError)
#: How many tables a reason names: it stands on screens and in logs.
_NAMED = 5


def block(
    deployment: Deployment, barrier: Barrier, publications: Sequence[Publication], error: BarrierError, actor: str
) -> bool:
    """Let ``barrier`` be BLOCKED because ``error`` was met. Raises BarrierBlockedError, which says the way out.

    True: another committer has brought it to COMMIT meanwhile. False: nothing is in the way (any more).
    """
    findings = deployment.tables.findings(publications)
    if deployment.meta.barriers.get(barrier.topology, barrier.barrier_id).state is BarrierState.COMMIT:
        return True
    if not findings:
        log.info("%s: nothing is in the way any more of what was met as: %s", barrier, error)
        return False
    blocked = deployment.meta.publishing.block(
        barrier.topology, barrier.barrier_id, reason_of(barrier, findings), actor
    )
    if blocked.state is BarrierState.COMMIT:
        return True
    raise BarrierBlockedError(f"{barrier} is BLOCKED: {blocked.reason}") from error  # safety: blocked-is-told


def resolve_command(barrier: Barrier, table: str, decision: Decision) -> str:
    """Return the command that a person types."""
    return (
        f"airflow-barrier barrier resolve {barrier.topology} {barrier.barrier_id} --table {shlex.quote(table)} "
        f"--{decision.value} --reason TEXT"
    )


def reason_of(barrier: Barrier, findings: Mapping[str, BarrierError]) -> str:
    """Return the reason why a barrier is BLOCKED: the tables, what was expected and found, and how a person goes on."""
    named = [_one(barrier, table, findings[table]) for table in sorted(findings)[:_NAMED]]
    more = [f"and {len(findings) - _NAMED} tables more"] if len(findings) > _NAMED else []
    return ". ".join(named + more)


def _one(barrier: Barrier, table: str, finding: BarrierError) -> str:
    keep, adopt = (f"`{resolve_command(barrier, table, decision)}`" for decision in Decision)
    tag = set_aside_tag(barrier.topology, barrier.barrier_id, barrier.computed_in)
    go_on = f"then {keep} goes on"
    if isinstance(finding, MissingTableError):
        way = (
            "If the table was renamed, rename it back; if it was dropped, register its last metadata document again "
            f"(CALL <catalog>.system.register_table('{table}', '<location>')); {go_on}"
        )
    elif isinstance(finding, ConfigurationError):
        way = f"Mend that, {go_on}"
    elif isinstance(finding, RefTakenError):
        way = f"Drop it, {go_on}"
    elif isinstance(finding, SnapshotMissingError):
        way = f"What this barrier staged is gone: {adopt} lets what main is at stand instead"
    else:
        way = (
            f"A person decides: {keep} publishes this epoch instead of theirs; {adopt} lets theirs stand and drops "
            f"this epoch's rows of the table. The other one is kept by the tag {tag}"
        )
    return f"{finding}. {way}"
