"""The life of an attempt: requested, started with pinned inputs, closed, PROCESSED; or ended."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, insert, select, update

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.carrying import pass_by
from airflow_barrier.metaservice.cuts import cuts
from airflow_barrier.metaservice.mapping import to_record
from airflow_barrier.metaservice.restage import restage
from airflow_barrier.metaservice.revision_rows import begins_anew, check_staging, corrected_bases
from airflow_barrier.metaservice.rows import (
    STANDING,
    attempts_of,
    barrier_key,
    incarnation_now,
    load_attempt,
    load_barrier,
    load_topology,
    lock_topology,
    newest_attempt,
    own_progress,
    progress,
    progress_before,
    raise_aborted,
    read_progress,
)
from airflow_barrier.metaservice.schema import DatabaseNow
from airflow_barrier.metaservice.starts import start_of
from airflow_barrier.metaservice.transaction import Group, changes, locked, reads
from airflow_barrier.metaservice.transitions import (
    Event,
    end_attempt,
    move_attempt,
    move_tables,
    precommit_if_complete,
    record,
)
from airflow_barrier.protocol.codec import encode
from airflow_barrier.protocol.errors import (
    AlreadyCommittedError,
    AttemptTakenError,
    IllegalTransitionError,
    NotOwnerError,
    SilentOutletError,
    UndeclaredTableError,
)
from airflow_barrier.protocol.records import Attempt, Barrier, Need, StagedTable, TableProgress, Tries
from airflow_barrier.protocol.restaging import refuse_ended
from airflow_barrier.protocol.states import (
    DECIDED_BARRIERS,
    LIVE_ATTEMPTS,
    AttemptState,
    BarrierState,
    TableState,
)
from airflow_barrier.protocol.topology import Job

_ATTEMPT = schema.attempt.c
#: So many sessions of a topology may be idle on a server: each holds connections to its catalog.
_MOST_IDLE = 16
#: What a retry of the same task takes over instead of doing it again.
_ADOPTED = frozenset({AttemptState.REQUESTED, AttemptState.CLOSED, AttemptState.PROCESSED})  # safety: adopted-states


@dataclass(frozen=True)
class Request:
    """A request for an attempt of a job. A retry has the same ``generation``, a clear another.

    ``owner``: the DAG that asks; None: a caller that is none, such as a person's command. ``server``: the connection of
    the Spark Connect server that the job runs on; None: it runs elsewhere.
    """

    topology: str
    barrier_id: int
    job: str
    request_key: str
    generation: str
    actor: str
    owner: str | None = None
    line: int = STANDING
    code: Mapping[str, str] = field(default_factory=dict)
    server: str | None = None


@dataclass(frozen=True)
class Begun:
    """An attempt, what it still ``needs``, and what it is for: ``barrier``, the one before it, and the job as the
    barrier has it.
    """

    attempt: Attempt
    needs: tuple[Need, ...]
    barrier: Barrier
    predecessor: Barrier
    job: Job


class Attempts(Group):
    """The attempts of jobs at barriers."""

    @locked
    def request(self, connection: Connection, request: Request) -> Attempt:
        """An attempt for this task: adopted from a try before it, or new.

        Of the same ``generation`` (a retry), REQUESTED, CLOSED and PROCESSED attempts are adopted; a RUNNING one is
        fenced and replaced. Another generation (a clear) stages anew: it fences the one before and, if that was
        PROCESSED, voids every attempt that consumed its output, at this barrier and later; their tables are PENDING
        and their barriers OPEN again. Raises AlreadyCommittedError from COMMITTING on, BarrierAbortedError, and
        NotOwnerError if ``owner``, the DAG that asks, is not the job's.

        ``code``: what the task runs, kept with the attempt.

        ``line``: for revision ``line``, which computes the barrier again. Raises RevisionEndedError once that is
        decided or cancelled.
        """
        return _request(connection, request)

    @locked
    def begin(self, connection: Connection, request: Request) -> Begun:
        """:meth:`request` and :meth:`start` in one transaction.

        The attempt is RUNNING if it was started. It is left REQUESTED if it waits, or if a cut that it reads was put
        off: that one has to be made before :meth:`start`.
        """
        attempt = _request(connection, request)
        needs: tuple[Need, ...] = ()
        barrier = load_barrier(connection, attempt.topology, attempt.barrier_id, attempt.line)
        before = load_barrier(connection, attempt.topology, barrier.predecessor or 0)
        job = load_topology(connection, barrier.topology, barrier.topology_version).job(attempt.job)
        if attempt.state is AttemptState.REQUESTED and not _reads_what_was_put_off(connection, attempt, job):
            started = _start(connection, attempt)
            attempt, needs = (attempt, started) if isinstance(started, tuple) else (started, ())
        return Begun(attempt, needs, barrier, before, job)

    @locked
    def lead(self, connection: Connection, request: Request, after_end: bool = False) -> Attempt | None:
        """Insert an attempt for a task of another run at a barrier, unless somebody has begun it.

        Fences an attempt that was only waiting, and takes over its generation (else: ``generation``), so that the
        waiting task adopts the result. ``after_end``: leaves an attempt that waits alone, and takes a barrier where
        every attempt has ended. Returns None if another task has begun, or if the barrier is not OPEN. Raises
        NotOwnerError.
        """
        barrier = load_barrier(connection, request.topology, request.barrier_id)
        before = newest_attempt(connection, request.topology, request.barrier_id, request.job)
        if after_end and before is not None and before.state not in LIVE_ATTEMPTS:
            before = None
        begun = before is not None and (after_end or before.state is not AttemptState.REQUESTED)
        if barrier.state is not BarrierState.OPEN or begun:  # safety: only-unbegun-is-led
            return None
        _check_owner(connection, barrier, request.job, request.owner)
        if before is None:
            return _insert(connection, barrier, request)
        reason = f"led by {request.request_key}"
        end_attempt(connection, before, AttemptState.FENCED, reason, Event("fenced", request.actor))
        return _insert(connection, barrier, replace(request, generation=before.generation))

    @reads
    def needs(self, connection: Connection, attempt: Attempt) -> tuple[Need, ...]:
        """Return the unmet needs of a REQUESTED attempt; empty for any other."""
        return _needs_of(connection, attempt)

    def start(self, attempt_id: int) -> Attempt | tuple[Need, ...]:
        """RUNNING, with inputs, previous and bases pinned; or what it waits for (which is kept in ``waited_for``).

        Of several callers one starts it; the others get AttemptTakenError (request again, which fences). Raises
        FencedAttemptError, VoidedAttemptError, BarrierAbortedError.
        """
        return self._read(lambda c: _still_waiting(c, attempt_id)) or self._write_locked(
            attempt_id, lambda c: _start(c, _reporting(c, attempt_id)[0])
        )

    @locked
    def rebase(self, connection: Connection, attempt_id: int, bases: Mapping[str, int | None]) -> Attempt:
        """Other bases for outlets of a RUNNING attempt, after a compaction.

        Raises FencedAttemptError, VoidedAttemptError.
        """
        attempt, barrier = _reporting(connection, attempt_id)
        if attempt.state is not AttemptState.RUNNING:
            raise IllegalTransitionError(  # safety: rebase-only-running
                f"{attempt}: expected RUNNING to build on other snapshots, found {attempt.state.value}; "
                "request a new attempt"
            )
        _check_declared(attempt, bases)  # safety: only-declared-outlets
        table = schema.attempt
        changed = {**attempt.bases, **bases}
        connection.execute(update(table).where(table.c.attempt_id == attempt_id).values(bases=changed))
        event = Event("rebased", attempt.request_key, {"before": dict(attempt.bases), "after": changed})
        record(
            connection,
            event,
            barrier.topology,
            barrier.barrier_id,
            "attempt",
            [str(attempt_id)],
            attempt.state.value,
            attempt.state.value,
            revision=attempt.line,
        )
        return load_attempt(connection, attempt_id)

    @locked
    def close(
        self,
        connection: Connection,
        attempt_id: int,
        staged: Mapping[str, StagedTable],
        actor: str,
        owner: str | None = None,
    ) -> Attempt:
        """RUNNING -> CLOSED with what was staged in each of its outlets; the same again changes nothing.

        Raises SilentOutletError, UndeclaredTableError, FencedAttemptError, VoidedAttemptError, BarrierAbortedError,
        NotOwnerError.
        """
        return _close(connection, attempt_id, staged, actor, owner)

    @locked
    def report(self, connection: Connection, attempt_id: int, actor: str, owner: str | None = None) -> Barrier:
        """CLOSED -> PROCESSED, its tables too; the barrier is PRECOMMIT if these were the last. Again changes nothing.

        For callers that have checked the tables themselves. Raises FencedAttemptError, VoidedAttemptError,
        BarrierAbortedError, NotOwnerError.
        """
        attempt, barrier = _reporting(connection, attempt_id)
        _check_owner(connection, barrier, attempt.job, owner)
        return _report(connection, attempt, barrier, actor)

    @locked
    def finish(
        self,
        connection: Connection,
        attempt: Attempt,
        staged: Mapping[str, StagedTable],
        actor: str,
        owner: str | None = None,
        idle: bool = False,
    ) -> Barrier:
        """:meth:`close` and :meth:`report` in one transaction, for callers that have checked the tables before.

        ``idle``: the attempt's session is left to the next attempt that starts on its server.
        """
        attempt = _close(connection, attempt.attempt_id, staged, actor, owner)
        barrier = load_barrier(connection, attempt.topology, attempt.barrier_id, attempt.line)
        left = {"session": None, "idle_session": attempt.session} if idle else {}
        return _report(connection, attempt, barrier, actor, **left)

    @locked
    def abort(self, connection: Connection, attempt_id: int, reason: str, actor: str) -> Attempt:
        """The task was killed or failed. An attempt that has ended or is PROCESSED stays as it is."""
        attempt = load_attempt(connection, attempt_id)
        if attempt.state not in LIVE_ATTEMPTS or attempt.state is AttemptState.PROCESSED:  # safety: kill-spares
            return attempt
        return end_attempt(
            connection, attempt, AttemptState.ABORTED, reason, Event("aborted", actor, {"reason": reason})
        )

    @changes
    def tried(self, connection: Connection, request_key: str, tries: Tries) -> None:
        """A try of the task has failed: what is known of others is kept with its newest attempt, if that is ABORTED."""
        newest = connection.execute(
            select(_ATTEMPT.attempt_id, _ATTEMPT.topology)
            .where(_ATTEMPT.request_key == request_key)
            .order_by(_ATTEMPT.attempt_id.desc())
            .limit(1)
        ).one_or_none()
        if newest is None:
            return
        lock_topology(connection, newest.topology)  # safety: topology-lock
        attempt = load_attempt(connection, newest.attempt_id)
        # one that slept may come after its own retry
        if attempt.state is AttemptState.ABORTED and (attempt.tried or 0) < tries.tried:
            here = _ATTEMPT.attempt_id == attempt.attempt_id
            connection.execute(update(schema.attempt).where(here).values(**vars(tries)))

    @reads
    def get(self, connection: Connection, attempt_id: int) -> Attempt:
        """The attempt of that number. Raises UnknownBarrierError if there is none."""
        return load_attempt(connection, attempt_id)

    @reads
    def of(self, connection: Connection, topology: str, barrier_id: int, line: int = 0) -> list[Attempt]:
        """All attempts of a barrier, oldest first; ``line``: those of revision ``line``."""
        return attempts_of(connection, topology, barrier_id, line)

    @reads
    def current(
        self, connection: Connection, topology: str, barrier_id: int, job: str, line: int = 0
    ) -> Attempt | None:
        """The newest attempt of a job at a barrier, whatever became of it; ``line``: of revision ``line``."""
        return newest_attempt(connection, topology, barrier_id, job, line)


def _request(connection: Connection, request: Request) -> Attempt:
    check_staging(connection, request.topology, request.line)  # safety: ended-revision-takes-nothing
    barrier = load_barrier(connection, request.topology, request.barrier_id, request.line)
    if barrier.state is BarrierState.ABORTED:
        raise_aborted(barrier)  # safety: aborted-takes-nothing
    _check_owner(connection, barrier, request.job, request.owner)
    before = newest_attempt(connection, request.topology, request.barrier_id, request.job, request.line)
    if (
        before is not None
        and before.generation == request.generation  # safety: clear-is-no-retry
        and before.state in _ADOPTED  # safety: running-is-fenced
    ):
        return before
    if barrier.state in DECIDED_BARRIERS:
        raise AlreadyCommittedError(  # safety: decided-takes-no-attempt
            f"{barrier}: expected OPEN or PRECOMMIT to stage job {request.job} again, found {barrier.state.value}; "
            "its tables stay as they are: correct them at a later barrier"
        )
    if before is not None and before.state in LIVE_ATTEMPTS:
        if before.state is AttemptState.PROCESSED:
            restage(connection, barrier, before, request.actor)  # safety: clear-restages
        end_attempt(
            connection, before, AttemptState.FENCED, _why_fenced(before, request), Event("fenced", request.actor)
        )  # safety: new-attempt-fences
    return _insert(connection, barrier, request)


def _why_fenced(before: Attempt, request: Request) -> str:
    """Return the reason shown beside an attempt that was under way and counts no more."""
    if before.request_key != request.request_key:
        return f"superseded by task {request.request_key}"
    if before.generation != request.generation:
        return "superseded by its task, which somebody cleared"
    return "superseded by the next try of its task"


def _check_owner(connection: Connection, barrier: Barrier, job: str, reporter: str | None) -> None:
    """Refuses a job that is no member of this barrier, naming those that are, and a DAG that does not own it."""
    owner = load_topology(connection, barrier.topology, barrier.topology_version).job(job).owner
    if reporter in (None, owner):
        return
    if barrier.state in DECIDED_BARRIERS:
        raise AlreadyCommittedError(  # safety: moved-job-is-told
            f"{barrier}: expected OPEN or PRECOMMIT to stage job {job}, found {barrier.state.value}; DAG {owner}, "
            "which owned the job then, has done it"
        )
    raise NotOwnerError(  # safety: owner-reports
        f"job {job} of {barrier}: expected its owner, DAG {owner}, found DAG {reporter}, which may neither do nor "
        f"report its work; give the job of DAG {reporter} a name and outlets of its own or, if it is to move there, "
        f"let DAG {owner} leave first: airflow-barrier topology leave {barrier.topology} --dag {owner} --job {job}"
    )


def _insert(connection: Connection, barrier: Barrier, request: Request) -> Attempt:
    row = connection.execute(
        insert(schema.attempt)
        .values(
            **barrier_key(barrier.topology, barrier.barrier_id, barrier.line),
            computed_in=barrier.line,
            job=request.job,
            state=AttemptState.REQUESTED.value,
            request_key=request.request_key,
            generation=request.generation,
            incarnation=incarnation_now(barrier.topology),
            requested_at=DatabaseNow(),
            waited_for=[],
            inputs={},
            previous={},
            bases={},
            staged={},
            code=dict(request.code),
            server=request.server,
            nonce=secrets.token_hex(16),
        )
        .returning(schema.attempt)
    ).one()
    attempt = to_record(Attempt, row)
    event = Event(
        "requested",
        request.actor,
        {"job": request.job, "request_key": request.request_key, "generation": request.generation},
    )
    record(
        connection,
        event,
        barrier.topology,
        barrier.barrier_id,
        "attempt",
        [str(attempt.attempt_id)],
        after=AttemptState.REQUESTED.value,
        revision=barrier.line,
    )
    return attempt


# --- starting -------------------------------------------------------------------------------------


def _still_waiting(connection: Connection, attempt_id: int) -> tuple[Need, ...]:
    """Return the needs the attempt waits for, if none is new: then a poll need not write. Empty: look closer."""
    attempt = load_attempt(connection, attempt_id)
    needs = _needs_of(connection, attempt)
    return needs if set(needs) <= set(attempt.waited_for) else ()


def _reads_what_was_put_off(connection: Connection, attempt: Attempt, job: Job) -> bool:
    if attempt.line != STANDING or not job.externals:  # a revision's barriers stand on cuts that were made
        return False
    made = cuts(connection, attempt.topology, attempt.barrier_id, items_of=())
    return any(made[external.name].put_off is not None for external in job.externals)


def _needs_of(connection: Connection, attempt: Attempt) -> tuple[Need, ...]:
    """Return the unmet needs of a REQUESTED attempt."""
    if attempt.state is not AttemptState.REQUESTED:
        return ()
    return _needs(attempt, *_surroundings(connection, attempt))


def _start(connection: Connection, attempt: Attempt) -> Attempt | tuple[Need, ...]:
    """REQUESTED -> RUNNING with pinned inputs; or what it waits for."""
    pass_by(connection, attempt)
    if attempt.state is not AttemptState.REQUESTED:
        raise AttemptTakenError(  # safety: started-once
            f"{attempt}: expected REQUESTED, found {attempt.state.value}; another process started it: request an "
            "attempt again"
        )
    job, here, before = _surroundings(connection, attempt)
    needs = _needs(attempt, job, here, before)
    if needs:  # safety: inputs-are-there
        _wait(connection, attempt, needs)
        return needs
    inlets, outlets = job
    start = start_of(connection, attempt.topology, attempt.barrier_id, attempt.job)
    previous = {table: before[table].snapshot_id for table in inlets}
    bases = {table: before[table].snapshot_id for table in outlets} | corrected_bases(connection, attempt)
    # a job whose tables are computed from the beginning takes all that its inlets hold
    if start is not None and not begins_anew(connection, attempt):  # safety: joins-where-it-said
        previous.update(start.previous)
    pinned = {
        "inputs": {table: here[table].snapshot_id for table in inlets},
        "previous": previous,
        "bases": bases,
    }
    event = Event("started", attempt.request_key, pinned)
    session = {} if attempt.server is None else {"session": _take_session(connection, attempt)}
    return move_attempt(connection, attempt, AttemptState.RUNNING, event, started_at=DatabaseNow(), **pinned, **session)


def _take_session(connection: Connection, attempt: Attempt) -> str:
    """The session that an attempt of the same job has left on the server, since compiled code is kept by session and
    differs by job; or a new one, unless so many are idle there that the one longest idle will do.
    """
    idle = connection.execute(
        select(_ATTEMPT.attempt_id, _ATTEMPT.job, _ATTEMPT.idle_session)
        .where(_ATTEMPT.topology == attempt.topology, _ATTEMPT.server == attempt.server, schema.IDLE)
        .order_by((_ATTEMPT.job == attempt.job).desc(), _ATTEMPT.attempt_id.desc())
        .limit(_MOST_IDLE)
    ).all()
    if idle and idle[0].job == attempt.job:
        left = idle[0]
    elif len(idle) == _MOST_IDLE:
        left = idle[-1]
    else:
        return str(uuid.uuid4())
    connection.execute(  # safety: session-serves-one-attempt
        update(schema.attempt).where(_ATTEMPT.attempt_id == left.attempt_id).values(idle_session=None)
    )
    return str(left.idle_session)


def _surroundings(
    connection: Connection, attempt: Attempt
) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], dict[str, TableProgress], dict[str, TableProgress]]:
    """The job's inlets and outlets, and how tables stand at the attempt's barrier and just before it."""
    barrier = load_barrier(connection, attempt.topology, attempt.barrier_id, attempt.line)
    job = load_topology(connection, barrier.topology, barrier.topology_version).job(attempt.job)
    tables = {*job.inlets, *job.outlets}
    read_progress(connection, barrier.topology, (0, barrier.predecessor or 0, barrier.barrier_id), tables)
    here = progress(connection, barrier.topology, barrier.barrier_id, tables=tables)
    if barrier.line != STANDING:  # what the revision does not compute again it takes as it is
        here.update(own_progress(connection, barrier, tables))
    return (job.inlets, job.outlets), here, progress_before(connection, barrier, tables)


def _needs(
    attempt: Attempt,
    job: tuple[tuple[str, ...], tuple[str, ...]],
    here: Mapping[str, TableProgress],
    before: Mapping[str, TableProgress],
) -> tuple[Need, ...]:
    inlets, outlets = job
    wanted = [before[table] for table in dict.fromkeys((*outlets, *inlets))] + [here[table] for table in inlets]
    return tuple(
        # Only rows of the baseline have no job, and these are never PENDING.
        Need(each.table, each.barrier_id, each.job or attempt.job, each.line)
        for each in wanted
        if each.state is TableState.PENDING
    )


def _wait(connection: Connection, attempt: Attempt, needs: tuple[Need, ...]) -> None:
    waited = tuple(dict.fromkeys((*attempt.waited_for, *needs)))
    table = schema.attempt
    connection.execute(update(table).where(table.c.attempt_id == attempt.attempt_id).values(waited_for=encode(waited)))


# --- reporting ------------------------------------------------------------------------------------


def _close(
    connection: Connection, attempt_id: int, staged: Mapping[str, StagedTable], actor: str, owner: str | None
) -> Attempt:
    attempt, barrier = _reporting(connection, attempt_id)
    _check_owner(connection, barrier, attempt.job, owner)
    if attempt.staged and attempt.staged == dict(staged):  # safety: closing-again
        return attempt
    _check_declared(attempt, staged)  # safety: only-declared-outlets
    silent = [
        name
        for name in sorted(attempt.bases)
        if name not in staged or (staged[name].snapshot_id is None and not staged[name].unchanged)
    ]
    if attempt.state is AttemptState.RUNNING and silent:
        raise SilentOutletError(  # safety: silent-outlet
            f"{attempt}: expected each outlet staged or declared unchanged, found nothing said of "
            f"{', '.join(silent)}; write to it, or call epoch.unchanged"
        )
    said = encode(staged)
    event = Event("closed", actor, {"staged": said})
    return move_attempt(connection, attempt, AttemptState.CLOSED, event, closed_at=DatabaseNow(), staged=said)


def _report(connection: Connection, attempt: Attempt, barrier: Barrier, actor: str, **values: Any) -> Barrier:
    """CLOSED -> PROCESSED; ``values``: of other columns of the attempt's row."""
    if attempt.state is AttemptState.PROCESSED:  # safety: processed-again
        return barrier
    event = Event("processed", actor, {"attempt_id": attempt.attempt_id})
    move_attempt(connection, attempt, AttemptState.PROCESSED, event, processed_at=DatabaseNow(), **values)
    unchanged = [name for name, staged in attempt.staged.items() if staged.unchanged]
    before = progress_before(connection, barrier, unchanged) if unchanged else {}
    for name, staged in sorted(attempt.staged.items()):
        if staged.unchanged:
            carried, snapshot = before[name].origin, attempt.bases[name]
        else:
            carried, snapshot = None, staged.snapshot_id
        move_tables(
            connection,
            barrier,
            [name],
            TableState.PENDING,
            TableState.PROCESSED,
            event,
            snapshot_id=snapshot,
            attempt_id=attempt.attempt_id,
            carried_from=carried,
            processed_at=DatabaseNow(),
        )
    return precommit_if_complete(connection, barrier, actor)


def _reporting(connection: Connection, attempt_id: int) -> tuple[Attempt, Barrier]:
    """The attempt and its barrier; refused if it was superseded, whatever it wants to say."""
    attempt = load_attempt(connection, attempt_id)
    check_staging(connection, attempt.topology, attempt.line)  # safety: ended-revision-takes-nothing
    barrier = load_barrier(connection, attempt.topology, attempt.barrier_id, attempt.line)
    if barrier.state is BarrierState.ABORTED and barrier.line >= STANDING:  # below it a revision has replaced the work
        raise_aborted(barrier)  # safety: aborted-takes-nothing
    if attempt.state not in LIVE_ATTEMPTS:
        refuse_ended(attempt)  # safety: fenced-reports-nothing
    return attempt, barrier


def _check_declared(attempt: Attempt, tables: Mapping[str, object]) -> None:
    undeclared = sorted(set(tables) - set(attempt.bases))
    if undeclared and attempt.bases:
        raise UndeclaredTableError(  # safety: only-declared-outlets
            f"{attempt}: expected only its outlets {', '.join(sorted(attempt.bases))}, found {', '.join(undeclared)}; "
            "declare it as an outlet of the job, or do not write to it"
        )
