"""One job's part of a barrier: begin an attempt, prepare its branch, and after the Spark work close and check it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime

from airflow_barrier.coordinator.cuts import Away, begins_anew, checked_cuts, cut_put_off
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.journal import current_mains
from airflow_barrier.coordinator.revisions.replay import corrections_of
from airflow_barrier.coordinator.unchanged import require_wap, staged_without_record
from airflow_barrier.metaservice.attempts import Begun, Request
from airflow_barrier.protocol.errors import (
    BarrierError,
    ForeignWriteError,
    GatedError,
    NotClosedError,
    SparkUnavailableError,
    StagedTableError,
    UnknownBarrierError,
    UnprovenFileError,
)
from airflow_barrier.protocol.names import is_rehearsal
from airflow_barrier.protocol.records import Attempt, Barrier, Cut, Need, RunRef, StagedTable
from airflow_barrier.protocol.restaging import refuse_ended
from airflow_barrier.protocol.revisions import RevisionState
from airflow_barrier.protocol.snapshots import Told
from airflow_barrier.protocol.states import UNDER_WAY_ATTEMPTS, AttemptState, BarrierState
from airflow_barrier.sources.port import Sized, Source
from airflow_barrier.spark.profile import SPARKS_OWN, Inlet, Profile, profile_of
from airflow_barrier.spark.spec import ClosingRecord, EpochSpec, Heads, damaged, digest_of, new_key
from airflow_barrier.tables.port import Look

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Asking:
    """A task that asks for attempts, and its work.

    ``generation`` is equal in all tries of one task and another after a person cleared it: a retry adopts what an
    earlier try closed, a clear stages anew. ``owner``: the DAG that asks (None: no DAG does). ``by_branch``: the job's
    code may know nothing of its epoch, and is sent to the attempt branch by conf. ``code``: what the task runs, to be
    kept with the attempt. ``server``: the connection of the Spark Connect server that the job runs on (None: it runs
    elsewhere). ``end`` ends a session there with its work: that of an earlier attempt, whose worker is lost.
    ``profile``: ``auto``, or ``spark``: see :mod:`airflow_barrier.spark.profile`.
    """

    request_key: str
    generation: str
    actor: str
    owner: str | None = None
    sql: str | None = None
    by_branch: bool = False
    code: Mapping[str, str] = field(default_factory=dict)
    server: str | None = None
    end: Callable[[str], None] | None = None
    profile: str = "auto"

    def request(self, barrier: Barrier, job: str) -> Request:
        """Return the MetaService's request for an attempt of ``job`` at ``barrier``."""
        return Request(
            barrier.topology,
            barrier.barrier_id,
            job,
            request_key=self.request_key,
            generation=self.generation,
            actor=self.actor,
            owner=self.owner,
            line=barrier.line,
            code=self.code,
            server=self.server,
        )


@dataclass(frozen=True)
class Ready:
    """The Spark work may start: everything it needs stands in ``spec``, which lies at ``spec_uri``.

    ``key`` is that of the spec's secrets (None: it has none). ``heads``: where branches are, by the catalog, for a
    driver in this process. ``earlier``: it is for a barrier before the one of the task's run.
    """

    attempt: Attempt
    spec: EpochSpec
    spec_uri: str
    digest: str
    key: str | None = field(repr=False)
    heads: Heads = field(repr=False, compare=False)
    earlier: bool = False


@dataclass(frozen=True)
class Adopted:
    """The work of an earlier try counts: nothing to run. ``earlier``: as in :class:`Ready`."""

    attempt: Attempt
    barrier: Barrier
    earlier: bool = False


@dataclass(frozen=True)
class Waiting:
    """Inputs are missing; ``needs`` names tables and the jobs that have to deliver them. Ask again later.

    ``away``: an external source that cannot be cut yet. Nobody is told when it can: it has to be tried.
    """

    attempt: Attempt
    needs: tuple[Need, ...]
    away: Away | None = None

    @property
    def reason(self) -> str:
        return self.away.why if self.away is not None else ", ".join(map(str, self.needs))


def find_barrier(
    deployment: Deployment, topology: str, *, run: RunRef | None = None, timestamp: datetime | None = None
) -> Barrier:
    """The barrier that a run opened, or else the one at a timestamp (UTC). Raises UnknownBarrierError."""
    barrier = deployment.meta.barriers.of_run(topology, run) if run is not None else None
    if barrier is None and timestamp is not None:
        barrier = deployment.meta.barriers.at(topology, timestamp)
    if barrier is None:
        raise UnknownBarrierError(
            f"topology {topology}: expected a barrier opened by run {run} or at {timestamp}, found none; "
            "has the start task of this run succeeded? Clear it to open the barrier"
        )
    return barrier


def begin(deployment: Deployment, barrier: Barrier, job: str, asking: Asking) -> Ready | Adopted | Waiting:
    """Ask for an attempt of ``job`` at ``barrier``.

    Raises AlreadyCommittedError, BarrierAbortedError, ForeignWriteError, GatedError (retryable), MissingTableError,
    NotOwnerError, WapDisabledError.
    """
    before = deployment.meta.attempts.current(barrier.topology, barrier.barrier_id, job, barrier.line)
    return begin_after(deployment, barrier, job, asking, before)


def begin_after(
    deployment: Deployment, barrier: Barrier, job: str, asking: Asking, before: Attempt | None
) -> Ready | Adopted | Waiting:
    """Begin as :func:`begin` does, for who has just seen that ``before`` is the newest attempt."""
    if before is not None and before.state is AttemptState.RUNNING and before.generation == asking.generation:
        _close_what_the_driver_closed(deployment, before, asking.actor)
    begun = deployment.meta.attempts.begin(asking.request(barrier, job))
    _end_fenced(deployment, asking, before, begun.attempt)
    if begun.needs:
        return _waiting(begun.attempt, begun.needs)
    if begun.attempt.state is AttemptState.RUNNING:
        return _prepare(deployment, begun, asking)
    return _proceed(deployment, begun.attempt, asking)


def take_over(deployment: Deployment, barrier: Barrier, job: str, asking: Asking) -> Ready | Adopted | Waiting | None:
    """Begin as :func:`begin` does, for a task of another run than the barrier's. None: another task is at it by now.

    A task of the barrier's own run that comes later adopts what is done here.
    """
    meta = deployment.meta
    newest = meta.attempts.current(barrier.topology, barrier.barrier_id, job, barrier.line)
    if barrier.line or (newest is not None and newest.request_key == asking.request_key):
        return begin_after(deployment, barrier, job, asking, newest)
    attempt = meta.attempts.lead(asking.request(barrier, job), after_end=True)
    if attempt is None:
        return None
    _end_fenced(deployment, asking, newest, attempt)
    return _proceed(deployment, attempt, asking)


def begin_again(deployment: Deployment, attempt_id: int, asking: Asking) -> Ready | Adopted | Waiting:
    """Go on with an attempt that was waiting.

    Raises FencedAttemptError if another one took its place meanwhile, VoidedAttemptError if its input was staged anew.
    """
    return _proceed(deployment, deployment.meta.attempts.get(attempt_id), asking)


def close(
    deployment: Deployment,
    attempt: Attempt,
    *,
    actor: str,
    record: ClosingRecord | None = None,
    owner: str | None = None,
    by_branch: bool = False,
    idle: bool = False,
) -> Barrier:
    """The Spark work is done: take its closing record, check the tables themselves, report PROCESSED.

    ``idle``: the session that it was done in is left to the next attempt on that server.

    Without ``record`` the file that the driver left is read. A driver that reads its epoch spec opens that file first:
    where there is no sign of it, and ``by_branch`` says that the job's code may know nothing of its epoch, the tables
    themselves tell what was staged. Raises NotClosedError, StagedTableError, UnprovenFileError (all retryable: the
    attempt has ended, a new one mends them), FencedAttemptError, VoidedAttemptError, SilentOutletError, UnguardedError.
    """
    if record is None:
        record = _read_closing_record(deployment, attempt, actor)
        if record is None and by_branch and not _was_opened(deployment, attempt):
            record = _staged_by_unchanged_job(deployment, attempt, actor)
        if record is None:
            reason = "the Spark work ended without a closing record"
            deployment.meta.attempts.abort(attempt.attempt_id, reason, actor)
            raise NotClosedError(  # safety: closing-record
                f"{attempt}: expected a closing record at {closing_uri(deployment, attempt)}, found none: the driver "
                "died before its last write; what it staged is discarded and a new attempt starts afresh"
            )
    if attempt.state is AttemptState.PROCESSED:
        return check_and_report(deployment, attempt, actor, owner)
    if attempt.state in UNDER_WAY_ATTEMPTS:
        _check_tables(deployment, attempt, record.staged, actor)
    barrier = deployment.meta.attempts.finish(attempt, record.staged, actor, owner, idle)
    _log_processed(attempt, barrier)
    return barrier


def give_up(deployment: Deployment, attempt_id: int, *, reason: str, actor: str) -> Attempt:
    """The task was killed or failed: the attempt ends, its branch is never looked at again."""
    attempt = deployment.meta.attempts.abort(attempt_id, reason, actor)
    log.info("%s is %s: %s", attempt, attempt.state.value, attempt.reason)
    return attempt


def barrier_folder(deployment: Deployment, topology: str, barrier_id: int) -> str:
    """Return the folder of a barrier's attempts, of whatever line."""
    return deployment.tables.location("_barrier", topology, f"b{barrier_id}")


def spec_uri(deployment: Deployment, attempt: Attempt) -> str:
    folder = barrier_folder(deployment, attempt.topology, attempt.barrier_id)
    return f"{folder}/a{attempt.attempt_id}.spec.json"


def closing_uri(deployment: Deployment, attempt: Attempt) -> str:
    folder = barrier_folder(deployment, attempt.topology, attempt.barrier_id)
    return f"{folder}/a{attempt.attempt_id}.closed.json"


def attempt_files(deployment: Deployment, attempt: Attempt) -> tuple[str, ...]:
    """All files that an attempt may leave; a driver writes its closing record beside its place, then renames it."""
    closing = closing_uri(deployment, attempt)
    return spec_uri(deployment, attempt), closing, f"{closing}.partial"


def delete_files(deployment: Deployment, topology: str, barrier_ids: Iterable[int], line: int = 0) -> None:
    """Delete the files of all attempts at these barriers; ``line``: of those of revision ``line``."""
    attempts = [each for number in barrier_ids for each in deployment.meta.attempts.of(topology, number, line)]
    delete_attempt_files(deployment, attempts)


def delete_attempt_files(deployment: Deployment, attempts: Iterable[Attempt]) -> None:
    """Delete all files that these attempts may have left."""
    deployment.tables.delete(uri for attempt in attempts for uri in attempt_files(deployment, attempt))


def _proceed(deployment: Deployment, attempt: Attempt, asking: Asking) -> Ready | Adopted | Waiting:
    meta, actor = deployment.meta, asking.actor
    if attempt.state in (AttemptState.CLOSED, AttemptState.PROCESSED):
        barrier = check_and_report(deployment, attempt, actor)
        log.info("%s was closed by an earlier try; adopted, nothing to run", attempt)
        return Adopted(meta.attempts.get(attempt.attempt_id), barrier)
    if attempt.state is AttemptState.REQUESTED:
        with _ending(deployment, attempt, actor):
            away = cut_put_off(deployment, attempt, actor)
        if away is not None:
            log.warning("%s waits: %s", attempt, away.why)
            return Waiting(attempt, (), away)
    started = meta.attempts.start(attempt.attempt_id)
    if isinstance(started, tuple):
        return _waiting(attempt, started)
    with meta.look():
        barrier = meta.barriers.get(attempt.topology, attempt.barrier_id, attempt.line)
        predecessor = meta.barriers.get(attempt.topology, barrier.predecessor or 0)
        job = meta.topologies.get(attempt.topology, barrier.topology_version).job(attempt.job)
    return _prepare(deployment, Begun(started, (), barrier, predecessor, job), asking)


def _waiting(attempt: Attempt, needs: tuple[Need, ...]) -> Waiting:
    log.info("%s waits for %s", attempt, ", ".join(map(str, needs)))
    return Waiting(attempt, needs)


def _end_fenced(deployment: Deployment, asking: Asking, before: Attempt | None, attempt: Attempt) -> None:
    """Stop what a lost worker left running: ``attempt`` has fenced it, and it would still use up the cluster."""
    if before is None or before.attempt_id == attempt.attempt_id or before.state is not AttemptState.RUNNING:
        return
    if asking.end is None:
        return
    # it may have closed since it was looked at, and its session be another attempt's by now
    session = deployment.meta.attempts.get(before.attempt_id).session
    if session is None:
        return
    try:
        asking.end(session)
    except SparkUnavailableError as error:
        log.warning("What %s left running could not be stopped: %s", before, error)


@contextmanager
def _ending(deployment: Deployment, attempt: Attempt, actor: str) -> Iterator[None]:
    """An error ends the attempt."""
    try:
        yield
    except Exception as error:
        # of errors that are not ours only the kind: there is no telling what they quote
        reason = str(error) if isinstance(error, BarrierError) else type(error).__name__
        ended = deployment.meta.attempts.abort(attempt.attempt_id, reason, actor)
        if ended.state in (AttemptState.FENCED, AttemptState.VOIDED):
            # what it met is the work of those who superseded it, and no stranger's
            refuse_ended(ended)
        raise


def _prepare(deployment: Deployment, begun: Begun, asking: Asking) -> Ready:
    """Make an attempt that is RUNNING ready for Spark."""
    attempt = begun.attempt
    with _ending(deployment, attempt, asking.actor):
        if asking.by_branch:
            require_wap(deployment, attempt)  # safety: wap-is-enabled
        attempt = _absorb(deployment, attempt, begun.predecessor)
        since = {table: at for table, at in attempt.previous.items() if table not in attempt.bases}
        told = deployment.tables.prepare({**attempt.inputs, **attempt.bases}, attempt.stamp, since)
        return _write_spec(deployment, replace(begun, attempt=attempt), asking, told)


def absorb_compactions(deployment: Deployment, attempt: Attempt) -> Attempt:
    """Build on a compaction that somebody ran on `main` since the predecessor was published, not beside it.

    Raises ForeignWriteError; GatedError if a revision is being published, whose swap of the tables it may have met.
    """
    barrier = deployment.meta.barriers.get(attempt.topology, attempt.barrier_id)
    return _absorb(deployment, attempt, deployment.meta.barriers.get(attempt.topology, barrier.predecessor or 0))


def _absorb(deployment: Deployment, attempt: Attempt, predecessor: Barrier) -> Attempt:
    # a revision builds on its own line, which `main` has left or is not at yet; a rehearsal on a barrier of the past
    if attempt.line or is_rehearsal(attempt.topology):
        return attempt
    if predecessor.state is not BarrierState.COMMIT:
        return attempt
    try:
        bases = current_mains(deployment, attempt.topology, attempt.bases)
    except ForeignWriteError as error:
        revision = deployment.meta.revisions.under_way(attempt.topology)
        if revision is None or revision.state is not RevisionState.COMMITTING:
            raise
        raise GatedError(
            f"{attempt}: expected tables as they were before revision {revision.revision}, found some that it has "
            "swapped already while its publish is not at its end; try again once it is. If its publisher has died, "
            f"`airflow-barrier revision run {attempt.topology} {revision.revision}` goes on with it"
        ) from error
    if bases == attempt.bases:
        return attempt
    for table in bases:
        if bases[table] != attempt.bases[table]:
            log.info("%s builds on compaction %s of %s, not on %s", attempt, bases[table], table, attempt.bases[table])
    return deployment.meta.attempts.rebase(attempt.attempt_id, bases)


def _write_spec(deployment: Deployment, begun: Begun, asking: Asking, told: Told) -> Ready:
    attempt, barrier, job = begun.attempt, begun.barrier, begun.job
    corrections = corrections_of(deployment, attempt, job, asking.by_branch)
    # what a correction stands in for need not be there any more
    sources = [] if corrections else [deployment.source_of(source) for source in job.externals]
    cuts = {} if corrections else checked_cuts(deployment, attempt, job, asking.actor)
    keeps_conf = asking.by_branch or corrections or asking.profile == "spark"
    profile = SPARKS_OWN if keeps_conf else _profile(attempt, told, sources, cuts)
    spec = EpochSpec(
        job=attempt.job,
        topology=attempt.topology,
        barrier_id=attempt.barrier_id,
        revision=attempt.computed_in,
        attempt_id=attempt.attempt_id,
        incarnation=attempt.incarnation,
        timestamp=barrier.timestamp,
        previous_timestamp=_previous_timestamp(deployment, attempt, begun.predecessor),
        catalog=deployment.spark_catalog,
        inputs=attempt.inputs,
        previous=attempt.previous,
        bases=attempt.bases,
        externals={source.name: source.for_driver() for source in sources},
        cuts=cuts,
        closing_uri=closing_uri(deployment, attempt),
        seed=_seed(barrier, attempt.job),
        nonce=attempt.nonce,
        sql=asking.sql,
        corrections=corrections,
        secrets={source.name: source.secrets for source in sources if source.secrets},
        deltas=told.deltas,
        conf=profile.conf,
        large=profile.large,
    )
    key = new_key()
    text = spec.dumps(key)
    uri = spec_uri(deployment, attempt)
    deployment.tables.write_text(uri, text)
    log.info("%s is ready on branch %s", attempt, attempt.branch)
    return Ready(attempt, spec, uri, digest_of(text), key if spec.secrets else None, deployment.tables.heads)


def _profile(attempt: Attempt, told: Told, sources: Iterable[Source], cuts: Mapping[str, Cut]) -> Profile:
    """Return how Spark is told to go about what the attempt can read."""

    def changed(table: str) -> int | None:
        if attempt.previous.get(table) is None:  # all of it came in this epoch
            return told.sizes.get(table)
        return told.deltas[table].bytes if table in told.deltas else None

    others = {table: told.sizes.get(table) for table in attempt.bases}
    for source in sources:
        others[source.name] = source.size(cuts[source.name]) if isinstance(source, Sized) else None
    found = profile_of({table: Inlet(changed(table), told.sizes.get(table)) for table in attempt.inputs}, others)
    log.info("%s: %s: %s", attempt, "a small epoch" if found.conf else "Spark's own conf", found.reason)
    return found


def _previous_timestamp(deployment: Deployment, attempt: Attempt, predecessor: Barrier) -> datetime | None:
    """Return the time at which the epoch begins; None: with the first record."""
    return predecessor.timestamp if predecessor.barrier_id and not begins_anew(deployment, attempt) else None


def _seed(barrier: Barrier, job: str) -> int:
    """The same in every attempt, so that a replay draws the same numbers; fits a Java int."""
    text = f"{barrier.topology}/{barrier.barrier_id}/{job}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def _close_what_the_driver_closed(deployment: Deployment, attempt: Attempt, actor: str) -> None:
    """A driver may have closed after its worker died: then its work counts and a retry need not repeat it."""
    try:
        record = _read_closing_record(deployment, attempt, actor)
    except UnprovenFileError as error:  # the attempt has ended, and its retry is here
        log.warning("%s", error)
        return
    if record is not None:
        deployment.meta.attempts.close(attempt.attempt_id, record.staged, actor)


def _was_opened(deployment: Deployment, attempt: Attempt) -> bool:
    """Return True if a driver that means to leave a closing record has begun."""
    return deployment.tables.exists(f"{closing_uri(deployment, attempt)}.partial")  # safety: opened-is-not-closed


def _staged_by_unchanged_job(deployment: Deployment, attempt: Attempt, actor: str) -> ClosingRecord:
    try:
        return staged_without_record(deployment, attempt)
    except BarrierError as error:
        deployment.meta.attempts.abort(attempt.attempt_id, str(error), actor)
        raise


def _read_closing_record(deployment: Deployment, attempt: Attempt, actor: str) -> ClosingRecord | None:
    """Return the closing record of the attempt's own driver; one of anybody else ends the attempt. Raises
    UnprovenFileError.
    """
    uri = closing_uri(deployment, attempt)
    where = f"{attempt}, closing record {uri}"
    try:
        return ClosingRecord.loads(deployment.tables.read_text(uri), attempt.attempt_id, attempt.nonce, where)
    except FileNotFoundError:  # nobody wrote one, or the barrier is over and it went with the others
        return None
    except (UnprovenFileError, UnicodeDecodeError) as error:
        unproven = error if isinstance(error, UnprovenFileError) else damaged(where, "text")
        # left RUNNING, every retry would read the same file
        deployment.meta.attempts.abort(attempt.attempt_id, str(unproven), actor)  # safety: unproven-is-given-up
        raise unproven from error


def check_and_report(deployment: Deployment, attempt: Attempt, actor: str, owner: str | None = None) -> Barrier:
    if attempt.state is AttemptState.CLOSED:
        # left CLOSED, every retry would adopt it and fail the same way
        _check_tables(deployment, attempt, attempt.staged, actor)
    barrier = deployment.meta.attempts.report(attempt.attempt_id, actor, owner)
    _log_processed(attempt, barrier)
    return barrier


def _log_processed(attempt: Attempt, barrier: Barrier) -> None:
    log.info("%s PROCESSED %s; %s is %s", attempt, ", ".join(attempt.bases), barrier, barrier.state.value)


def _check_tables(deployment: Deployment, attempt: Attempt, said: Mapping[str, StagedTable], actor: str) -> None:
    """Trust the table, not the reporter, who ``said`` what was staged; of what nobody spoke the MetaService says so."""
    seen = deployment.tables.seen(attempt.bases)
    try:
        for table in attempt.bases:
            if table in said:
                _check_table(seen, attempt, said[table])  # safety: trust-the-table
    except StagedTableError as error:
        deployment.meta.attempts.abort(attempt.attempt_id, str(error), actor)  # safety: bad-staging-is-given-up
        ended = deployment.meta.attempts.get(attempt.attempt_id)
        if ended.state in (AttemptState.FENCED, AttemptState.VOIDED):
            refuse_ended(ended)
        raise


def _check_table(seen: Look, attempt: Attempt, said: StagedTable) -> None:
    base = attempt.bases[said.table]
    if not said.unchanged:
        if said.snapshot_id is not None:
            seen.check_snapshot(said.table, said.snapshot_id, attempt.stamp, base)  # safety: trust-the-table
        return
    found = seen.staged(said.table, attempt.stamp, base)
    if found is not None:
        raise StagedTableError(  # safety: unchanged-is-unwritten
            f"{attempt}: {said.table} was declared unchanged, but branch {attempt.branch} holds snapshot {found} on "
            f"top of {base}; the job writes to a table that it calls unchanged"
        )
