"""The application that a task submits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from airflow_barrier.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook


class Submission:
    """An application of a task, with a driver of its own in client mode; :meth:`kill` ends it.

    What it imports of this package travels with it.
    """

    def __init__(self, task_id: str, spark_conn_id: str, conf: Mapping[str, str]) -> None:
        """``conf``: what the task's author has said."""
        self._task_id = task_id
        self._spark_conn_id = spark_conn_id
        self._conf = conf
        self.hook: SparkSubmitHook | None = None

    def run(self, application: str, name: str, conf: Mapping[str, str]) -> None:
        """Submit the file and wait until it has ended. ``conf`` goes before the author's."""
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        from airflow_barrier.spark.driver_zip import driver_zip

        with TemporaryDirectory(prefix="airflow-barrier-") as folder:
            # the option replaces the conf, which the author may have set
            py_files = [str(driver_zip(Path(folder))), *filter(None, [self._conf.get("spark.submit.pyFiles")])]
            self.hook = SparkSubmitHook(
                conf=self._guarded(conf),
                conn_id=self._spark_conn_id,
                name=name,
                py_files=",".join(py_files),
            )
            driver = self.hook.submit(application)
        if driver is not None:
            raise ConfigurationError(
                f"task {self._task_id}: expected connection {self._spark_conn_id} to submit in client mode, found "
                f"driver {driver} in cluster mode, which outlives spark-submit. Name another connection; a job in "
                "cluster mode is a SparkSubmitOperator that is handed to barrier.job"
            )

    def _guarded(self, conf: Mapping[str, str]) -> dict[str, str]:
        """The author's conf and this one, and on a Spark that needs it the guard."""
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        from airflow_barrier.operators.handover.local_spark import installed_version, spark_defaults, with_guard
        from airflow_barrier.spark.guard import guard_jar
        from airflow_barrier.systems.spark_versions import check_version, needs_guard

        binary = SparkSubmitHook(conn_id=self._spark_conn_id).spark_binary or "spark-submit"
        version = installed_version(binary)
        check_version(version, f"task {self._task_id}")
        both = {**self._conf, **conf}
        if version is None or not needs_guard(version):
            return both
        return with_guard(both, guard_jar(), version, spark_defaults(binary))

    def kill(self) -> None:
        """Nothing running is fine."""
        if self.hook is not None:
            self.hook.on_kill()
