"""How a delivery's task has Spark write what it takes of tables: in a session on a server, or by spark-submit."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from airflow.providers.common.compat.sdk import AirflowException

from airflow_barrier.operators._session import TaskSession
from airflow_barrier.operators._submission import Submission
from airflow_barrier.protocol.errors import SparkUnavailableError

if TYPE_CHECKING:
    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.spark.delivering import Extract


class Extracts(Protocol):
    """A context manager: what is started for it ends with the block."""

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...

    def write(self, deployment: Deployment, extracts: Sequence[Extract], folder: str) -> list[list[str]]:
        """Write as :func:`~airflow_barrier.spark.delivering.write_extracts` does. Raises SparkUnavailableError, too."""
        ...

    def kill(self) -> None:
        """End the work; what waits for it gets an error, and nothing else is begun."""
        ...


def extracts_of(task_id: str, via: str, spark_conn_id: str, conf: Mapping[str, str]) -> Extracts:
    """``conf``: of an application that is submitted."""
    if via == "connect":
        return ConnectExtracts(task_id, spark_conn_id)
    return SubmittedExtracts(task_id, spark_conn_id, conf)


class ConnectExtracts:
    """:class:`Extracts` in one session on a Spark Connect server."""

    def __init__(self, task_id: str, spark_conn_id: str) -> None:
        self._task_id = task_id
        self._session = TaskSession(task_id, spark_conn_id)

    def __enter__(self) -> None:
        self._session.__enter__()

    def __exit__(self, *error: object) -> None:
        self._session.__exit__(*error)

    def write(self, deployment: Deployment, extracts: Sequence[Extract], folder: str) -> list[list[str]]:
        from airflow_barrier.spark.connect import lost_server_is_retryable
        from airflow_barrier.spark.delivering import write_extracts

        with lost_server_is_retryable(f"task {self._task_id}"):
            return write_extracts(self._session(), deployment.spark_catalog, extracts, folder)

    def kill(self) -> None:
        self._session.kill()


class SubmittedExtracts:
    """:class:`Extracts` by an application that is submitted for them."""

    def __init__(self, task_id: str, spark_conn_id: str, conf: Mapping[str, str]) -> None:
        self._task_id = task_id
        self.submission = Submission(task_id, spark_conn_id, conf)
        self._killed = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def write(self, deployment: Deployment, extracts: Sequence[Extract], folder: str) -> list[list[str]]:
        from airflow_barrier.spark.extracting import EXTRACT_APPLICATION, Order
        from airflow_barrier.spark.spec import digest_of
        from airflow_barrier.spark.submit import submit_conf

        order = Order(deployment.spark_catalog, tuple(extracts), folder, secrets.token_hex(16))
        text = order.dumps()
        deployment.tables.write_text(order.uri, text)
        self._check_alive()
        try:
            self.submission.run(
                EXTRACT_APPLICATION, f"delivery of {self._task_id}", submit_conf(order.uri, digest_of(text))
            )
        except AirflowException as error:
            self._check_alive()
            raise self._failed() from error
        try:
            answer = deployment.tables.read_text(order.answer_uri)
        except FileNotFoundError as error:
            raise self._failed() from error
        return order.files(answer)

    def kill(self) -> None:
        self._killed = True
        self.submission.kill()

    def _check_alive(self) -> None:
        if self._killed:
            raise AirflowException(f"task {self._task_id} was killed")

    def _failed(self) -> SparkUnavailableError:
        return SparkUnavailableError(
            f"task {self._task_id}: expected an answer of the application that was submitted, found that it ended "
            "without one; the log of the task has what it said. A retry submits it anew"
        )
