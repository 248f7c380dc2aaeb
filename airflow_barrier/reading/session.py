"""Consistent sessions: one answer at a time, held by a lease that is renewed until the session ends.

FLIP-276, "Data Consistency Type". A session never goes back (invariant 2): :meth:`ConsistentSession.refresh` goes on to
what is newest by then, and where work was rolled back at read committed it says so.
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.errors import (
    LeaseLostError,
    SchemaVersionError,
    StoreUnavailableError,
    WentBackError,
)
from airflow_barrier.protocol.leases import Hold, Lease, check_seconds
from airflow_barrier.protocol.levels import Level, Resolution
from airflow_barrier.reading.answer import Answer
from airflow_barrier.reading.question import Held, Question, resolved

log = logging.getLogger(__name__)

#: Seconds that a lease lives unless it is renewed, which a session does three times as often.
LEASE_SECONDS = 60.0


@dataclass(frozen=True)
class FellBack:
    """The event that a session at read committed now reads less than before, because jobs of ``start`` were staged
    anew or it was aborted. ``end`` may be the same barrier, with other snapshots.
    """

    topology: str
    start: int
    end: int

    def __str__(self) -> str:
        what = f"from barrier {self.start} back to {self.end}" if self.end != self.start else f"at barrier {self.start}"
        return f"topology {self.topology}: work that was read was rolled back; this session fell back {what}"


class ConsistentSession(Answer):
    """One consistent answer about the tables of a topology. Made by :func:`consistent_session`.

    Use it from one thread at a time; the lease is renewed by a thread of its own.
    """

    def __init__(self, deployment: Deployment, question: Question, hold: Hold) -> None:
        super().__init__(deployment, question.at)
        self._question = question
        self._hold = hold
        held = resolved(deployment, question, hold)
        self._resolution = held.resolution
        self._heartbeat = _Heartbeat(deployment, held, hold.seconds)
        self.fell_back: FellBack | None = None

    def check(self) -> None:
        """Raises LeaseLostError unless all that was read up to now was held.

        Asks the MetaService, which may know of a loss that the last heartbeat did not. The end of the block does so by
        itself; call it before that where rows are handed on within the block.
        """
        self._heartbeat.check_anew()

    @property
    def resolution(self) -> Resolution:
        """Return which snapshot of each table is read. Raises LeaseLostError if that is no longer held."""
        self._heartbeat.check()
        return self._resolution

    @property
    def lease(self) -> Lease:
        """The lease as it was renewed last. Raises LeaseLostError."""
        self._heartbeat.check()
        return self._heartbeat.lease

    def refresh(self) -> Resolution:
        """Go on to what is newest at the level by now; a session at a fixed barrier stays there.

        Sets :attr:`fell_back` if that is less than before, which only read committed can come to. Raises WentBackError
        if it is less for no such reason, StaleAnswerError as :func:`consistent_session` does.
        """
        if self._question.at is not None:
            return self.resolution
        self.check()
        before = self._resolution
        held = resolved(self._deployment, self._question, self._hold)
        after, following = held.resolution, _Heartbeat(self._deployment, held, self._hold.seconds)
        try:
            # Asked after the second look, which may have met a rollback that the session did not know of when it began.
            fell_back = _fallen(before, after, self._heartbeat.rolled_back()) if _is_less(before, after) else None
        except (WentBackError, LeaseLostError):
            following.stop()
            raise
        self._heartbeat.stop()
        self._resolution, self._heartbeat, self.fell_back = after, following, fell_back
        if fell_back is not None:
            log.warning("%s", fell_back)
        return after

    def _close(self) -> None:
        """Release the lease."""
        self._heartbeat.stop()


@contextmanager
def consistent_session(
    deployment: Deployment,
    topology: str,
    *,
    level: str | None = None,
    tables: Sequence[str] | None = None,
    at: int | datetime | None = None,
    revision: int | None = None,
    not_older_than: timedelta | None = None,
    wait: timedelta = timedelta(0),
    holder: str | None = None,
    lease_seconds: float = LEASE_SECONDS,
) -> Iterator[ConsistentSession]:
    """A session over ``tables`` of ``topology`` (None: all), until the block ends.

    ``level``: which barriers count, by its name or as :class:`Level`; None: the deployment's (its connection's
    ``consistency``). ``at``: a barrier's id, or a time (aware): the newest barrier at or before it. ``revision``: the
    barrier ``at`` as that revision computed it (0: as it was computed first), though another one stands since.
    ``not_older_than``: how far the answer's barrier may lie behind the database's clock, else StaleAnswerError
    (retryable), after looking again for as long as ``wait``; not at read uncommitted. ``holder``: who reads, for
    people who see the leases; default: user, process and machine. ``lease_seconds``: after how long what a crashed
    session held is free again.

    Raises what :meth:`Answers.resolve <airflow_barrier.metaservice.resolving.Answers.resolve>` does, and at the
    end of the block LeaseLostError, if what was read in it was not held all the time.

    >>> with consistent_session(deployment, "shopping") as session, session.duckdb() as connection:  # doctest: +SKIP
    ...     connection.sql("SELECT itemId, amount / price FROM shop.amount JOIN shop.price USING (itemId)").show()
    """
    check_seconds(lease_seconds)
    wanted = deployment.level if level is None else Level.parse(level)
    question = Question(topology, wanted, tables, at, not_older_than, wait, revision)
    session = ConsistentSession(deployment, question, Hold(holder or this_process(), lease_seconds))
    try:
        yield session
        session.check()  # safety: reading-ends-with-a-look
    finally:
        session._close()


def this_process() -> str:
    """User, process and machine.

    >>> this_process()  # doctest: +SKIP
    'ada, process 4711 on host-3'
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number that has no name
        user = f"user {os.getuid()}"
    return f"{user}, process {os.getpid()} on {socket.gethostname()}"


def _is_less(before: Resolution, after: Resolution) -> bool:
    """An earlier barrier, or the same one with other snapshots."""
    if before.barrier_id is None or after.barrier_id is None:
        return False  # at read uncommitted nothing is promised
    return after.barrier_id < before.barrier_id or (
        after.barrier_id == before.barrier_id and after.snapshots != before.snapshots
    )


def _fallen(before: Resolution, after: Resolution, rolled_back: bool) -> FellBack | None:
    """Return the event that ``after`` is less. ``rolled_back``: work of the barriers that the session held was rolled
    back; if none was, a revision has replaced the snapshots, and there is no event.
    """
    assert before.barrier_id is not None
    assert after.barrier_id is not None
    if after.barrier_id < before.barrier_id and not (rolled_back and before.level is Level.READ_COMMITTED):
        raise WentBackError(  # safety: sessions-never-go-back
            f"topology {before.topology} at {before.level.value}: expected barrier {before.barrier_id} or a newer one, "
            f"which this session has read, found {after.barrier_id} to be the newest; was the MetaService restored "
            "from an older backup? See airflow-barrier recover"
        )
    return FellBack(before.topology, before.barrier_id, after.barrier_id) if rolled_back else None


class _Heartbeat:
    """Renews a lease from a thread of its own until it is stopped, which releases it."""

    def __init__(self, deployment: Deployment, held: Held, seconds: float) -> None:
        self._meta = deployment.meta
        self._seconds = seconds
        self.lease = held.lease
        self._lost: LeaseLostError | None = None
        self._certain_until = held.since + seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lease-{held.lease.lease_id}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises LeaseLostError, also where the MetaService could not be asked for as long as the lease lives."""
        if time.monotonic() > self._certain_until:
            self._renew()
        if self._lost is not None:
            raise LeaseLostError(str(self._lost))  # safety: lost-lease-ends-reading
        if self._over.is_set():
            raise LeaseLostError(  # safety: closed-session-reads-nothing
                f"{self.lease}: expected an open session, found one that is closed; open another one"
            )
        if time.monotonic() > self._certain_until:
            raise LeaseLostError(  # safety: silence-ends-reading
                f"{self.lease}: expected to renew it every {self._seconds / 3:.0f} s, found that the MetaService did "
                "not answer for as long as it lives; what it held may be deleted by now: resolve anew and read again"
            )

    def check_anew(self) -> None:
        """Check as :meth:`check` does, by what the MetaService knows now."""
        self.check()
        self._renew()
        self.check()

    def rolled_back(self) -> bool:
        """Return whether work of the barriers that are held has been rolled back by now: the answer may consist of
        it.
        """
        self.check_anew()
        return self.lease.rolled_back

    def stop(self) -> None:
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join()
        try:
            self._meta.leases.release(self.lease.lease_id)
        except (StoreUnavailableError, SchemaVersionError) as error:
            log.warning("%s was not released and ends by itself: %s", self.lease, error)

    def _beat(self) -> None:
        while self._lost is None and not self._over.wait(self._seconds / 3):
            self._renew()

    def _renew(self) -> None:
        asked = time.monotonic()
        try:
            renewed = self._meta.leases.renew(self.lease.lease_id, self._seconds)
        except LeaseLostError as error:
            log.error("%s", error)
            self._lost = error
        except (StoreUnavailableError, SchemaVersionError) as error:  # a deploy may be under way
            log.warning("%s was not renewed, which is tried again: %s", self.lease, error)
        else:
            if renewed.rolled_back and not self.lease.rolled_back:
                log.warning("%s: work that may be read here was rolled back; refresh() for what counts now", renewed)
            self._certain_until = asked + self._seconds
            self.lease = replace(self.lease, expires_at=renewed.expires_at, rolled_back=renewed.rolled_back)
