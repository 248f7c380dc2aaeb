"""What became of an action, as the API and ``--json`` tell it."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_barrier.api import models, offers
from airflow_barrier.api.offers import listed
from airflow_barrier.coordinator.aborting import Aborted
from airflow_barrier.coordinator.committing import Committed, NotYet
from airflow_barrier.coordinator.resolving import Resolved
from airflow_barrier.coordinator.revisions.runs import Woken
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import Revision
from airflow_barrier.protocol.states import BarrierState, Decision


def of_abort(barrier_id: int, done: Aborted) -> models.Done:
    if not done.barriers:
        states = {f"barrier {barrier_id}": BarrierState.ABORTED.value}
        return models.Done(changed=False, summary=f"Barrier {barrier_id} was aborted before.", states=states)
    numbers = [each.barrier_id for each in done.barriers]
    said = f"Aborted {listed('barrier', numbers)}; {offers.joins(numbers)}."
    if done.left is not None:
        said += " Tags that hold their input in tables outside the topology are left; the log says why."
    return of_barriers(done.barriers, said)


def of_commit(done: Committed) -> models.Done:
    if not done.published:
        return of_barriers([done.barrier], f"Barrier {done.barrier.barrier_id} was committed before.", changed=False)
    which = listed("barrier", [each.barrier_id for each in done.published])
    return of_barriers(done.published, f"Committed {which}: readers have it.")


def of_decision(done: Resolved, then: Committed | NotYet | None = None) -> models.Done:
    """``then``: what became of a commit that was made at once."""
    if isinstance(then, Committed):
        return of_barriers(then.published or [then.barrier], f"{_outcome(done)} {of_commit(then).summary}")
    next_to_do = _next(done.barrier) if then is None else f"Not committed: {then.reason}."
    return of_barriers([done.barrier], f"{_outcome(done)} {next_to_do}")


def _outcome(resolved: Resolved) -> str:
    table = resolved.table
    if resolved.decision is None:
        return f"Nothing is in the way of {table} any more."
    if resolved.decision is Decision.KEEP_OURS:
        return f"Ours of {table} stands."
    again = ", ".join(f"{attempt.job} at barrier {attempt.barrier_id}" for attempt in resolved.voided)
    return f"Theirs of {table} stands." + (f" To be computed again, since it stood on ours: {again}." if again else "")


def _next(barrier: Barrier) -> str:
    if barrier.state is BarrierState.BLOCKED:
        return f"Barrier {barrier.barrier_id} is still BLOCKED: {barrier.reason}"
    return f"Barrier {barrier.barrier_id} is {barrier.state.value}: commit it, or wait for the topology's next commit."


def of_release(lease_id: int) -> models.Done:
    said = f"Released lease {lease_id}; its reader will be told."
    return models.Done(changed=True, summary=said, states={f"lease {lease_id}": "ended"})


def of_cancel(revision: Revision, *, changed: bool) -> models.Done:
    number = revision.revision
    said = f"Cancelled revision {number}: readers have seen nothing of it."
    return models.Done(
        changed=changed,
        summary=said if changed else f"Revision {number} was cancelled before.",
        states=_state(revision),
    )


def of_waking(revision: Revision, woken: Woken, began: str = "", *, changed: bool = True) -> models.Done:
    """``began``: a sentence of what was done before that; ``changed`` then tells of that."""
    runs = f"{len(woken.runs)} run{'' if len(woken.runs) == 1 else 's'}"
    said = [began] if began else []
    said.append(f"Woke {runs} for it: {', '.join(woken.runs)}." if woken.runs else "No run had to be woken.")
    if woken.busy:
        said.append(f"Still at work for something else: {', '.join(woken.busy)}; wake its runs once they have ended.")
    said += [f"{sentence}." for sentence in woken.left]
    return models.Done(changed=changed, summary=" ".join(said), states=_state(revision))


def _state(revision: Revision) -> dict[str, str]:
    return {f"revision {revision.revision}": revision.state.value}


def of_barriers(barriers: Iterable[Barrier], summary: str, *, changed: bool = True) -> models.Done:
    """``barriers``: as they are now."""
    states = {f"barrier {each.barrier_id}": each.state.value for each in barriers}
    return models.Done(changed=changed, summary=summary, states=states)
