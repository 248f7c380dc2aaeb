"""Handing work to a Spark Connect server: each attempt in a session that no other one is in, and that any process can
end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.errors import ConfigurationError, SparkUnavailableError
from airflow_barrier.spark.driver import prepare_session, stage
from airflow_barrier.spark.epoch import Job
from airflow_barrier.spark.spec import ClosingRecord, EpochSpec, Heads
from airflow_barrier.systems.spark_versions import installed_spark, is_before, runs_before

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_barrier.spark._traces import Traces

log = logging.getLogger(__name__)

#: Seconds to wait for a server to accept the connection.
CONNECT_TIMEOUT = 30.0
#: Of a call that finds the server gone, with pauses of 0.05 to 8 seconds: about 20 seconds in all.
_RETRIES = 6
#: In milliseconds, between two of them.
_LONGEST_PAUSE = 8_000
# What running work is told by a server that shuts down in good order; there is no error class for it.
_SHUTTING_DOWN = ("stopped SparkContext", "SparkContext was shut down")
_USER = "airflow-barrier"
_NAMESPACE = uuid.UUID("5e6f1c0a-3a0e-5b4f-9a53-0d7f3b6f2c11")
# Calls that do no work on the server end in time even if it hangs; AnalyzePlan and ExecutePlan take what they take.
_SERVICE_CONFIG = """{"methodConfig": [{"timeout": "30s", "name": [
    {"service": "spark.connect.SparkConnectService", "method": "Config"},
    {"service": "spark.connect.SparkConnectService", "method": "Interrupt"},
    {"service": "spark.connect.SparkConnectService", "method": "ReleaseExecute"},
    {"service": "spark.connect.SparkConnectService", "method": "ReleaseSession"}]}]}"""
_CHANNEL_OPTIONS = [
    ("grpc.service_config", _SERVICE_CONFIG),
    # A host that vanished without a word is noticed; servers refuse pings more often than every five minutes.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
]


def connect_session(
    url: str, session_id: str | None = None, timeout: float = CONNECT_TIMEOUT, traces: Traces | None = None
) -> SparkSession:
    """A session on the server at ``url`` (``sc://host:port/;token=…``): a new one, or that of ``session_id``.

    ``traces`` listens to what its client asks.

    A lost server is retried for half a minute, not for the ten minutes of the client's own choice. Raises
    :class:`~airflow_barrier.protocol.errors.SparkUnavailableError` if the server accepts no connection within
    ``timeout`` seconds. Close it with :func:`stop_session`.
    """
    _check_client()
    import grpc
    from pyspark.errors import PySparkValueError
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.session import SparkSession

    try:
        builder = DefaultChannelBuilder(url, _CHANNEL_OPTIONS)
    except PySparkValueError:
        raise ConfigurationError(
            "Spark Connect URL: expected sc://host:port/;key=value, found something else; correct the connection "
            "(the URL is not shown, since it may hold a token)"
        ) from None
    if builder.userId is None:
        builder.set(builder.PARAM_USER_ID, _USER)
    if session_id is not None:
        builder.set(builder.PARAM_SESSION_ID, session_id)
    if traces is not None:
        builder.add_interceptor(traces)
    # pyspark's functions ask this variable which engine they build expressions for
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    session = SparkSession.builder.channelBuilder(builder).create()
    _retry(session, _RETRIES)
    try:
        grpc.channel_ready_future(session.client._channel).result(timeout)
    except grpc.FutureTimeoutError:
        _spare_the_pool(session)
        session.client.close()
        raise SparkUnavailableError(
            f"Spark Connect server {builder.endpoint}: expected a connection within {timeout:.0f} s, found none; is it "
            "running, and reachable from the Airflow worker?"
        ) from None
    return session  # type: ignore[return-value]


def _check_client() -> None:
    """Servers before 4.0 end no session, so that what a lost attempt left there could not be stopped."""
    if runs_before("4.0"):
        raise _too_old("package pyspark", installed_spark().number)


@contextlib.contextmanager
def _stopped_by_errors(session: SparkSession) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        # of a statement from a newer client, servers before 4.0 see no text, and refuse it for that
        version = session.version if "PARSE_SYNTAX_ERROR" in str(error) else None
        stop_session(session)
        if version is not None and is_before(version, "4.0"):
            raise _too_old("server", version) from error
        raise


def _too_old(what: str, version: str) -> ConfigurationError:
    return ConfigurationError(
        f"Spark Connect: expected a {what} of version 4.0 or newer, found {version}: jobs reach a Spark 3.5 by "
        "spark-submit, so let the operator say via='submit'"
    )


def stop_session(session: SparkSession) -> None:
    """End a session and all its work on the server; does not wait long for a server that is gone."""
    from pyspark.errors import PySparkException

    connect: Any = session
    _retry(connect, 2)
    try:
        connect.client.release_session()
    except PySparkException as error:
        log.warning("Spark Connect session %s was not released: %s", connect.session_id, first_line(error))
    _leave(connect)


def _leave(connect: Any) -> None:
    """Close the client of a session, which stays on the server as it is."""
    connect.release_session_on_close = False
    connect.stop()
    _spare_the_pool(connect)  # closed once more when it is garbage collected


class ConnectRun:
    """One attempt's work on a Spark Connect server.

    run = ConnectRun("sc://spark:15002", ready.spec, ready.heads, ready.attempt.session)
    record = run.run(job)          # in the task
    with run.handing_over() as idle:
        close(deployment, ready.attempt, record=record, idle=idle, actor="me")
    run.interrupt()                # in on_kill, or in any other process
    """

    def __init__(self, url: str, spec: EpochSpec, heads: Heads | None = None, session_id: str | None = None) -> None:
        """``heads``: as for :func:`~airflow_barrier.spark.driver.stage`. ``session_id``: a session that no other
        attempt is in, which another one may have left; None: a new one.
        """
        self._url = url
        self._spec = spec
        self._heads = heads
        self._session_id = session_id or str(uuid.uuid4())
        self._idle = False
        self._handed_over = False
        # a signal handler may come while its own thread has it
        self._lock = threading.RLock()

    def run(self, job: Job) -> ClosingRecord:
        """Run ``job`` in the session and return what it staged.

        Raises :class:`~airflow_barrier.protocol.errors.SparkUnavailableError` (retryable) if the server goes away, and
        what :func:`~airflow_barrier.spark.driver.run_epoch` raises.
        """
        from airflow_barrier.spark._traces import Traces

        traces = Traces()
        with lost_server_is_retryable(_named(self._spec)):
            session = self._open(traces)
            with _stopped_by_errors(session):
                session.addTag(self._spec.branch)  # names the attempt in Spark's UI
                record = stage(session, self._spec, job, self._heads)
        traces.remove(session)
        if traces.lasting is not None:  # safety: session-with-traces-serves-no-other
            log.info("%s: its session serves no other attempt, since %s", _named(self._spec), traces.lasting)
            stop_session(session)
            return record
        _leave(session)
        self._idle = True
        return record

    @contextlib.contextmanager
    def handing_over(self) -> Iterator[bool]:
        """Close the attempt in this block: yields whether its session may then serve another one.

        It is not interrupted any more. An error ends it.
        """
        with self._lock:
            self._handed_over = True
        try:
            yield self._idle
        except BaseException:
            if self._idle:
                end_sessions(self._url, self._session_id)
            raise

    def interrupt(self) -> None:
        """Stop the work on the server, wherever it was started; it cannot go on with another statement either."""
        with self._lock:
            if self._handed_over:  # safety: anothers-session-is-not-ended
                return
            end_sessions(self._url, self._session_id)
        log.info("stopped the work of %s on Spark Connect", _named(self._spec))

    def _open(self, traces: Traces) -> SparkSession:
        """A session with the attempt's conf: the attempt's own, or the next one if the server has it no more."""
        try:
            return self._prepared(self._session_id, traces)
        except Exception as error:
            if not _is_gone(error):
                raise
            log.info("%s: its session is gone, and it takes a new one: %s", _named(self._spec), first_line(error))
            traces.lasting = "the attempt's row names another one"
            return self._prepared(_next_session(self._session_id), traces)

    def _prepared(self, session_id: str, traces: Traces) -> SparkSession:
        session = connect_session(self._url, session_id, traces=traces)
        with _stopped_by_errors(session):
            prepare_session(session, self._spec)
        return session


def end_sessions(url: str, session_id: str) -> None:
    """End an attempt's session with all its work, and the one that it runs in if that was gone: :func:`end_session`."""
    for each in (session_id, _next_session(session_id)):
        end_session(url, each)


def _next_session(session_id: str) -> str:
    """The session of an attempt whose own was gone. Derived, so that whoever knows the one can end both."""
    return str(uuid.uuid5(_NAMESPACE, session_id))


def end_session(url: str, session_id: str) -> None:
    """End a session with all its work, whoever made it; it takes no other statement. Nothing running is fine.

    A stage that Spark submits in this very moment is not cancelled and runs to its end: Spark 4.1, see docs/facts.md.
    Uses a connection of its own, so that a signal handler may call it while the task waits for the same session.
    Raises :class:`~airflow_barrier.protocol.errors.SparkUnavailableError` if the server cannot be reached.
    """
    session = connect_session(url, session_id)
    _spare_the_pool(session)
    stop_session(session)


def _spare_the_pool(session: Any) -> None:
    """Have the closing of the session close its own channel only.

    pyspark 4.1 also shuts down a thread pool that all sessions of the process share. Done by the garbage collector, or
    by a signal handler, in a thread that just then hands work to that pool, it waits for its own lock for ever
    (SPARK-55406).
    """
    session.client.close = session.client._channel.close


def _retry(session: Any, times: int) -> None:
    from pyspark.sql.connect.client.retries import DefaultPolicy

    # from 4.1 on a server may ask for a longer pause
    pauses = ["max_backoff"] if runs_before("4.1") else ["max_backoff", "max_server_retry_delay"]
    policy: Any = DefaultPolicy
    session.client.set_retry_policies([policy(max_retries=times, **dict.fromkeys(pauses, _LONGEST_PAUSE))])


def _named(spec: EpochSpec) -> str:
    return f"attempt {spec.attempt_id} of job {spec.job} at barrier {spec.barrier_id} of {spec.topology}"


@contextlib.contextmanager
def lost_server_is_retryable(work: str) -> Iterator[None]:
    """A server that goes away during ``work`` is a :class:`~airflow_barrier.protocol.errors.SparkUnavailableError`."""
    try:
        yield
    except Exception as error:
        if not is_lost(error):
            raise
        raise SparkUnavailableError(
            f"{work}: expected the Spark Connect server to answer, found {first_line(error)}; it went away, was "
            "restarted, or somebody stopped this work: a retry begins anew"
        ) from error


def is_lost(error: Exception) -> bool:
    """Return whether the server went away, or came back without our session."""
    import grpc
    from pyspark.errors import PySparkException
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    gone = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    if isinstance(error, grpc.RpcError):
        return error.code() in gone
    if isinstance(error, SparkConnectGrpcException) and _status(error) in gone:
        return True
    if any(sign in str(error) for sign in _SHUTTING_DOWN):
        return True
    condition = (error.getCondition() or "") if isinstance(error, PySparkException) else ""
    return _is_gone(error) or condition in ("NO_ACTIVE_SESSION", "RESPONSE_ALREADY_RECEIVED", "RETRIES_EXCEEDED")


def _is_gone(error: Exception) -> bool:
    """Return whether the server has ended the session: somebody did, nobody used it for an hour, or it restarted."""
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException) and (error.getCondition() or "").startswith("INVALID_HANDLE")


def first_line(error: Exception) -> str:
    """Spark's messages go on for pages."""
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    if type(error) is SparkConnectGrpcException:  # its text is gRPC's whole report
        status = _status(error)
        return f"{type(error).__name__}: {'no status' if status is None else status.name}"
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


def _status(error: Any) -> Any:
    """gRPC's status code; None before Spark 4.1, whose errors say it in their text alone."""
    return None if runs_before("4.1") else error.getGrpcStatusCode()
