"""What who may edit the DAGs does by the API: as by the command line, with their name and a reason in the audit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterator
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
from airflow_barrier.coordinator.resolving import in_the_way, resolve_table
from airflow_barrier.coordinator.revisions.publish import cancel_revision
from airflow_barrier.protocol.errors import (
    BarrierError,
    ConfigurationError,
    IllegalTransitionError,
    NotPrecommitError,
    Retryable,
    UnknownBarrierError,
    UnknownRevisionError,
    UnknownTableError,
)
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import Revision, RevisionState

MAY_NOT = "expected somebody who may edit all DAGs that have jobs in this topology, found none; ask one who may"
NOT_NOW = (
    "it could not be done just now: the MetaService or the tables did not answer, or somebody was at the same thing; "
    "the log of the server says why. Look again; trying again is harmless"
)
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


def _require_at(sight: Sight, barrier_id: int) -> Barrier:
    """The barrier, if the caller may edit all that an action at it can reach."""
    barrier = sight.meta.barriers.get(sight.name, barrier_id)
    near = offers.reach(sight, barrier)
    _require(sight, near.versions, near.revision)
    return barrier


def _require(sight: Sight, versions: Collection[int], revision: Revision | None = None) -> None:
    if not sight.edits_all(versions, revision):
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
