"""What who may edit the DAGs does by the API: as by the command line, with their name and a reason in the audit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from email.message import Message
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError

from airflow_barrier.api import models, offers, outcomes
from airflow_barrier.api.access import BarrierId, LeaseId, RevisionNumber, Told, log
from airflow_barrier.api.sight import AccessDep, Sight, SightDep
from airflow_barrier.coordinator.aborting import abort_by_hand
from airflow_barrier.coordinator.committing import commit_by_hand
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.resolving import in_the_way, resolve_table
from airflow_barrier.coordinator.revisions.begin import begin_revision, plan_revision
from airflow_barrier.coordinator.revisions.plan import RevisionPlan, Wanted
from airflow_barrier.coordinator.revisions.publish import cancel_revision
from airflow_barrier.coordinator.revisions.runs import Woken, wake_window
from airflow_barrier.coordinator.revisions.telling import notes_of, plan_lines, revision_command
from airflow_barrier.protocol.errors import (
    BarrierError,
    ConfigurationError,
    IllegalTransitionError,
    NotPrecommitError,
    Retryable,
    RevisionRefusedError,
    UnknownBarrierError,
    UnknownRevisionError,
    UnknownTableError,
)
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import Revision, RevisionMode, RevisionState
from airflow_barrier.protocol.topology import Job

MAY_NOT = "expected somebody who may edit all DAGs that have jobs in this topology, found none; ask one who may"
NOT_NOW = (
    "it could not be done just now: the MetaService or the tables did not answer, or somebody was at the same thing; "
    "the log of the server says why. Look again; trying again is harmless"
)
NOT_WOKEN = "its runs could not be woken just now; the log of the server says why. Wake its runs once that is mended"
ELSEWHERE = "expected a request of this server's own pages, or of a program, found one of another site's page"
NOT_JSON = "expected Content-Type: application/json"
_UNKNOWN = (UnknownBarrierError, UnknownRevisionError, UnknownTableError)
#: What `Sec-Fetch-Site` says where no other site's page has a hand in it.
_OWN = frozenset({"same-origin", "none"})


class Acted(Told):
    """A route that changes something. Browsers send Airflow's cookie by themselves: no other site's page may use it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def acted(request: Request) -> Response:
            if request.method == "POST":
                _check_origin(request)
            try:
                return await handle(request)
            except RequestValidationError as error:
                # what was sent is not sent back: it may be text that cannot even be encoded
                told = [{key: one[key] for key in ("type", "loc", "msg")} for one in error.errors()]
                raise RequestValidationError(told) from None

        return acted


def _check_origin(request: Request) -> None:
    if request.headers.get("sec-fetch-site", "none") not in _OWN:
        raise HTTPException(403, ELSEWHERE)
    header = Message()
    header["content-type"] = request.headers.get("content-type", "")
    if header.get_content_type() != "application/json":  # which a page of another site may not send
        raise HTTPException(415, NOT_JSON)


router = APIRouter(
    prefix="/v1/deployments/{deployment}/topologies/{topology}",
    route_class=Acted,
    responses={
        400: {"model": models.Problem, "description": "The body is no text in UTF-8."},
        403: {"model": models.Problem, "description": "Not all DAGs that have jobs in it may be edited."},
        409: {"model": models.Problem, "description": "It cannot be done as things are; why, and what can."},
        415: {"model": models.Problem, "description": "The body is not said to be JSON."},
    },
)


@router.post("/barriers/{barrier_id}/abort", operation_id="abort", summary="Give up a barrier and all later ones")
def abort(
    access: AccessDep, sight: SightDep, deployment: str, barrier_id: BarrierId, asked: models.Asked
) -> models.Done:
    _require_at(sight, barrier_id)
    with _refusals():
        done = abort_by_hand(
            sight.meta,
            sight.name,
            barrier_id,
            reason=asked.reason,
            actor=access.actor,
            connect=lambda: nullcontext(access.deployment(deployment)),
        )
    if done.left is not None:
        numbers = [each.barrier_id for each in done.barriers]
        log.warning(
            "barriers %s of %s: tags in tables outside the topology are left: %s", numbers, sight.name, done.left
        )
    return outcomes.of_abort(barrier_id, done)


@router.post("/barriers/{barrier_id}/commit", operation_id="commit", summary="Publish a barrier and all earlier ones")
def commit(
    access: AccessDep, sight: SightDep, deployment: str, barrier_id: BarrierId, asked: models.Asked
) -> models.Done:
    _require_at(sight, barrier_id)
    with _refusals():
        done = commit_by_hand(
            access.deployment(deployment), sight.name, barrier_id, reason=asked.reason, actor=access.actor
        )
    return outcomes.of_commit(done)


@router.get(
    "/barriers/{barrier_id}/decisions",
    operation_id="decisions",
    summary="The tables in the way of a BLOCKED barrier, and what can be decided; they are looked at now",
)
def decisions(access: AccessDep, sight: SightDep, deployment: str, barrier_id: BarrierId) -> models.TablesInTheWay:
    barrier = _require_at(sight, barrier_id)
    with _refusals():
        found = in_the_way(access.deployment(deployment), sight.name, barrier_id)
    return models.TablesInTheWay(
        tables=[
            models.TableInTheWay(
                table=each.table,
                finding=None if each.finding is None else str(each.finding),
                choices=[offers.choice(barrier, each, decision) for decision in each.possible],
            )
            for each in found
        ]
    )


@router.post(
    "/barriers/{barrier_id}/resolve",
    operation_id="resolve",
    summary="Decide about a table that is in the way of a BLOCKED barrier; its next commit publishes it",
)
def resolve(
    access: AccessDep, sight: SightDep, deployment: str, barrier_id: BarrierId, asked: models.Decided
) -> models.Done:
    _require_at(sight, barrier_id)
    with _refusals():
        try:
            resolved = resolve_table(
                access.deployment(deployment),
                sight.name,
                barrier_id,
                asked.table,
                asked.decision,
                reason=asked.reason,
                actor=access.actor,
            )
        except IllegalTransitionError:
            if not _was_decided(sight, barrier_id, asked):
                raise
            said = f"{asked.decision.value} was decided for {asked.table} at barrier {barrier_id} before."
            return outcomes.of_barriers([sight.meta.barriers.get(sight.name, barrier_id)], said, changed=False)
    return outcomes.of_decision(resolved)


def _was_decided(sight: Sight, barrier_id: int, asked: models.Decided) -> bool:
    rows = sight.meta.barriers.progress(sight.name, barrier_id)
    return any(row.table == asked.table and row.decision is asked.decision for row in rows)


@router.post("/leases/{lease_id}/release", operation_id="release", summary="End somebody's lease before its time")
def release(access: AccessDep, sight: SightDep, lease_id: LeaseId, asked: models.Asked) -> models.Done:
    leases = [each for each in sight.meta.leases.of(sight.name) if each.lease_id == lease_id]
    _require(sight, offers.versions_of(sight, leases).get(lease_id, ()))
    try:
        sight.meta.leases.end(sight.name, lease_id, f"{access.actor}: {asked.reason}")
    except ConfigurationError:  # nothing tells whether there ever was one
        said = f"Lease {lease_id} holds nothing of {sight.name}: it was released before, has ended, or never was."
        return models.Done(changed=False, summary=said, states={f"lease {lease_id}": "ended"})
    return outcomes.of_release(lease_id)


@router.post("/revisions/{revision}/cancel", operation_id="cancel", summary="Give up a revision that is not published")
def cancel(
    access: AccessDep, sight: SightDep, deployment: str, revision: RevisionNumber, asked: models.Asked
) -> models.Done:
    before, barriers = sight.meta.overviews.revised(sight.name, revision)
    _require(sight, {each.topology_version for each in barriers}, before)
    with _refusals():
        after = cancel_revision(
            access.deployment(deployment), sight.name, revision, reason=asked.reason, actor=access.actor
        )
    return outcomes.of_cancel(after, changed=before.state is RevisionState.STAGING)


@router.post(
    "/revisions/plan",
    operation_id="plan",
    summary="Plan to compute barriers again from one on, after input or code was corrected; nothing is changed",
)
def plan(access: AccessDep, sight: SightDep, deployment: str, asked: models.Correction) -> models.Plan:
    _require(sight, {sight.version})
    with _refusals():
        found = _planned(sight, access.deployment(deployment), asked)
        return models.Plan(
            revision=_next_number(sight),
            lines=list(plan_lines(found)),
            notes=list(notes_of(found)),
            command=revision_command(found.wanted),
            dags=list(found.owners),
        )


@router.post(
    "/revisions", operation_id="begin", summary="Begin a revision that was planned, and wake the runs that compute it"
)
def begin(access: AccessDep, sight: SightDep, deployment: str, asked: models.Planned) -> models.Done:
    _require(sight, {sight.version})
    with _refusals():
        waker, there = access.waker(), access.deployment(deployment)
        revision, is_new = _begun(sight, there, asked, access.actor)
    if revision.state is not RevisionState.STAGING:
        return outcomes.of_waking(revision, Woken(), f"{revision} was begun before.", changed=False)
    try:
        woken = wake_window(there, revision, None, waker)
    except BarrierError as error:  # it has begun, which is to be told
        log.warning("%s: its runs were not woken: %s", revision, error)
        woken = Woken(left=(NOT_WOKEN,))
    said = f"Began {revision}." if is_new else f"{revision} was begun before."
    return outcomes.of_waking(revision, woken, said, changed=is_new)


@router.post(
    "/revisions/{revision}/wake", operation_id="wake", summary="Wake the runs that have not computed a revision's days"
)
def wake(
    access: AccessDep, sight: SightDep, deployment: str, revision: RevisionNumber, asked: models.Again
) -> models.Done:
    found, barriers = sight.meta.overviews.revised(sight.name, revision)
    _require(sight, {each.topology_version for each in barriers}, found)
    with _refusals():
        woken = wake_window(access.deployment(deployment), found, None, access.waker())
    log.info("%s woke the runs of %s: %s", access.actor, found, ", ".join(woken.runs) or "none")
    return outcomes.of_waking(found, woken, changed=bool(woken.runs))


def _planned(sight: Sight, deployment: Deployment, asked: models.Correction) -> RevisionPlan:
    wanted = Wanted(
        sight.name,
        asked.first,
        asked.last,
        changed=asked.jobs,
        recut=asked.recut,
        mode=RevisionMode.FULL if asked.full else RevisionMode.INCREMENTAL,
    )
    found = plan_revision(deployment, wanted)
    _require(sight, {each.topology_version for each in found.barriers}, joining=found.jobs)
    return found


def _next_number(sight: Sight) -> int:
    return 1 + sum(each.revision for each in sight.meta.revisions.newest(sight.name, 1))


def _begun(sight: Sight, deployment: Deployment, asked: models.Planned, actor: str) -> tuple[Revision, bool]:
    """Begin it, unless the same has been before by the same one, whose answer was lost; return whether it is new."""
    try:
        found = _planned(sight, deployment, asked)
        number = _next_number(sight)
        if number != asked.revision:
            raise RevisionRefusedError(  # safety: begun-once
                f"topology {sight.name}: expected what you begin to be revision {asked.revision}, as it was planned, "
                f"found that the next one is revision {number}; look at the newest revision, and plan yours again"
            )
        return begin_revision(deployment, found, reason=asked.reason, actor=actor), True
    except RevisionRefusedError:
        before = [each for each in sight.meta.revisions.newest(sight.name, 1) if _is_same(each, asked, actor)]
        if not before:
            raise
        return before[0], False


def _is_same(revision: Revision, asked: models.Planned, actor: str) -> bool:
    return (
        revision.state is not RevisionState.CANCELLED
        and (revision.revision, revision.actor, revision.reason) == (asked.revision, actor, asked.reason)
        and (revision.first_barrier, revision.window_end) == (asked.first, asked.last or asked.first)
        and set(asked.jobs) <= set(revision.changed)
        and set(asked.recut) == set(revision.recut)
        and (revision.mode is RevisionMode.FULL) is asked.full
    )


def _require_at(sight: Sight, barrier_id: int) -> Barrier:
    """The barrier, if the caller may edit all that an action at it can reach."""
    barrier = sight.meta.barriers.get(sight.name, barrier_id)
    near = offers.reach(sight, barrier)
    _require(sight, near.versions, near.revision)
    return barrier


def _require(
    sight: Sight, versions: Collection[int], revision: Revision | None = None, joining: Iterable[Job] = ()
) -> None:
    if not sight.edits_all(versions, revision, joining):
        raise HTTPException(403, MAY_NOT)


@contextmanager
def _refusals() -> Iterator[None]:
    """Tell who may edit all of it why something cannot be done."""
    try:
        yield
    except _UNKNOWN as error:
        raise HTTPException(404, str(error)) from error
    except BarrierError as error:
        if isinstance(error, Retryable) and not isinstance(error, NotPrecommitError):
            log.warning("%s", error)
            raise HTTPException(503, NOT_NOW) from error
        raise HTTPException(409, str(error)) from error
