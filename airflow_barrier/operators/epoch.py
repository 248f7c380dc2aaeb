"""The operator for SQL jobs and epoch jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_barrier.operators._binding import SparkWork
from airflow_barrier.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_barrier.coordinator.batching import Batch
    from airflow_barrier.coordinator.staging import Ready
    from airflow_barrier.operators._submission import Submission
    from airflow_barrier.spark.connect import ConnectRun
    from airflow_barrier.spark.epoch import Job
    from airflow_barrier.spark.spec import ClosingRecord


_CONNECTIONS = {"connect": "spark_connect_default", "submit": "spark_default"}


def connection_for(task_id: str, via: str, spark_conn_id: str | None) -> str:
    """The connection that a task names, or the default. Raises ConfigurationError if there is no such way."""
    if via not in _CONNECTIONS:
        raise ConfigurationError(f"task {task_id}: via: expected 'connect' or 'submit', found {via!r}")
    return spark_conn_id or _CONNECTIONS[via]


class SparkEpochOperator(BaseOperator):
    """Runs an epoch job or one SQL statement for the run's barrier, on Spark Connect or by spark-submit.

    Exactly one of ``application`` and ``sql`` says what to run. It stands in the block of a
    :class:`~airflow_barrier.operators.group.BarrierGroup`, and is a job by its ``inlets`` and ``outlets``, by the
    placeholders of its SQL, or by :meth:`~airflow_barrier.operators.group.BarrierGroup.job`.

    :param application: the ``.py`` file with the function decorated ``@epoch_job``, or on Spark Connect also the name
        of an importable module. (templated)
    :param job: which function, if the file has several; on Spark Connect only. (templated)
    :param sql: the statement, or a ``.sql`` file: see :class:`~airflow_barrier.spark.sql.SqlJob`. (templated)
    :param via: ``connect``: a session on a running server, no JVM to start. ``submit``: a driver of its own, in client
        mode; for cluster mode hand a SparkSubmitOperator to ``barrier.job``.
    :param spark_conn_id: default ``spark_connect_default`` or ``spark_default``.
    :param conf: Spark conf of the driver, for ``via="submit"``. (templated)
    :param profile: ``auto``: an epoch that reads little is run without Spark's adaptive execution and in few tasks,
        where no conf of yours says otherwise. ``spark``: Spark's conf is left as it is.

    Killing the task stops the Spark work. Returns (XCom) the barrier's id.

    >>> SparkEpochOperator(task_id="amount", application="/jobs/amount.py").spark_conn_id
    'spark_connect_default'
    """

    template_fields: Sequence[str] = ("application", "job", "sql", "conf")
    template_ext: Sequence[str] = (".sql",)
    template_fields_renderers = {"sql": "sql"}  # noqa: RUF012 - Airflow reads it as a plain attribute
    ui_color = "#fef9c3"
    #: a decorated function is the job
    _by_function = False

    def __init__(
        self,
        *,
        application: str | None = None,
        job: str | None = None,
        sql: str | None = None,
        via: str = "connect",
        spark_conn_id: str | None = None,
        conf: Mapping[str, str] | None = None,
        profile: str = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (application is None) == (sql is None) and not self._by_function:
            raise ConfigurationError(f"task {self.task_id}: expected either application=... or sql=..., not both")
        self.spark_conn_id = connection_for(self.task_id, via, spark_conn_id)
        if via == "submit" and job is not None:
            raise ConfigurationError(
                f"task {self.task_id}: spark-submit runs the file as it is, so job={job!r} cannot choose a function of "
                "it; give the job a file of its own"
            )
        self.application = application
        self.job = job
        self.sql = sql
        self.via = via
        self.conf = dict(conf or {})
        if profile not in ("auto", "spark"):
            raise ConfigurationError(f"task {self.task_id}: profile: expected 'auto' or 'spark', found {profile!r}")
        self.profile = profile
        self._connect_run: ConnectRun | None = None
        self._submission: Submission | None = None

    def execute(self, context: Context) -> Any:
        raise ConfigurationError(
            f"task {self.task_id}: expected to be part of a BarrierGroup, found it alone; put it "
            "into the group's block, with inlets=[...] and outlets=[...], or hand it to barrier.job(...)"
        )

    def epoch_work(self, context: Context) -> SparkWork:
        """Return how a job of this operator does its work: the group's steps ask for it."""
        if self.via == "connect":
            return SparkWork(
                run=self._connect,
                stop=self._stop,
                sql=self.sql,
                run_batch=self._connect_batch,
                server=self.spark_conn_id,
                end=self._end,
                handing_over=self._handing_over,
                profile=self.profile,
            )
        return SparkWork(
            run=self._submit, stop=self._stop, sql=self.sql, run_batch=self._submit_batch, profile=self.profile
        )

    def _stop(self) -> None:
        if self._connect_run is not None:
            self._connect_run.interrupt()
        if self._submission is not None:
            self._submission.kill()

    def _end(self, session: str) -> None:
        from airflow_barrier.spark.connect import end_sessions

        end_sessions(self._connect_url, session)

    @property
    def _connect_url(self) -> str:
        from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

        return str(SparkConnectHook(self.spark_conn_id).get_connection_url())

    def _connect(self, ready: Ready) -> ClosingRecord:
        from airflow_barrier.spark.connect import ConnectRun

        job = self._epoch_job()
        self._connect_run = ConnectRun(self._connect_url, ready.spec, ready.heads, ready.attempt.session)
        return self._connect_run.run(job)

    def _connect_batch(self, batch: Batch) -> None:
        ready: Ready | None = batch.first
        while ready is not None:
            record = self._connect(ready)
            with self._handing_over() as idle:
                batch.close(record, idle)
            ready = batch.following()  # which takes the session that was left just now

    def _handing_over(self) -> AbstractContextManager[bool]:
        return nullcontext(False) if self._connect_run is None else self._connect_run.handing_over()

    def _epoch_job(self) -> Job:
        from airflow_barrier.spark.job import load_job
        from airflow_barrier.spark.sql import SqlJob

        return load_job(self.application, self.job) if self.application else SqlJob(self.sql or "")

    def _submit_batch(self, batch: Batch) -> None:
        from airflow_barrier.operators._batch import submit_batch
        from airflow_barrier.spark.batch import batch_conf

        submit_batch(batch, lambda ready: self._submit(ready, batch_conf()))

    def _submit(self, ready: Ready, conf: Mapping[str, str] | None = None) -> None:
        from airflow_barrier.operators._submission import Submission
        from airflow_barrier.spark.submit import SQL_APPLICATION, submit_conf

        self._submission = Submission(self.task_id, self.spark_conn_id, self.conf)
        self._submission.run(
            self.application or SQL_APPLICATION,
            ready.attempt.branch,
            {**submit_conf(ready.spec_uri, ready.digest, ready.key), **(conf or {})},
        )
