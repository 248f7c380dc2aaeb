"""A task's session on a Spark Connect server, which ends with the task, however that ends."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import AirflowException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TaskSession:
    """Made when it is first asked for; stopped at the end of the block, or by :meth:`kill`.

    with session:
        session().sql(...)
    """

    def __init__(self, task_id: str, spark_conn_id: str) -> None:
        self._task_id = task_id
        self._spark_conn_id = spark_conn_id
        self._where: tuple[str, str] | None = None  # url, session id
        self._session: SparkSession | None = None
        self._killed = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        from airflow_barrier.spark.connect import stop_session

        if self._session is not None:
            stop_session(self._session)
            self._session = None

    def __call__(self) -> SparkSession:
        from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

        from airflow_barrier.spark.connect import connect_session

        if self._killed:
            raise AirflowException(f"task {self._task_id} was killed")
        if self._session is None:
            self._where = (SparkConnectHook(self._spark_conn_id).get_connection_url(), str(uuid.uuid4()))
            self._session = connect_session(*self._where)
        return self._session

    def kill(self) -> None:
        """End the session on the server, with its work; what waits for that work gets an error."""
        from airflow_barrier.spark.connect import end_session

        self._killed = True
        if self._where is not None:
            end_session(*self._where)
