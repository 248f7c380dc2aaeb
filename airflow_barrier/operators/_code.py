"""What a job's task ran: kept with each attempt, so that a plan can say that code changed since."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator
from errno import ENAMETOOLONG
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.errors import UnreadableCodeError

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

#: Where operators keep what they run: files, statements, functions.
_FILES = ("application", "_application", "py_files", "_py_files", "java_class", "_java_class")
_TEXTS = ("sql", "_sql", "job")

#: Bytes of a file that are in memory at once: an application may be a jar of hundreds of megabytes.
_PIECE = 2**20


def code_of(task: BaseOperator, context: Context) -> dict[str, str]:
    """The run specification of an attempt: which operator, what it runs and, of files at hand, a fingerprint.

    ``fingerprint`` differs where code differs: the content of local files, statements, the source of functions. Of
    what is not at hand its name counts. Statements themselves are not kept. Raises UnreadableCodeError.

    >>> code_of(task, context)["operator"]  # doctest: +SKIP
    'SparkEpochOperator'
    """
    found = {"operator": type(task).__name__}
    digest = hashlib.sha256(type(task).__name__.encode())
    for part in _parts(task):
        digest.update(part)
    for name in _FILES[:2]:
        where = vars(task).get(name)
        if isinstance(where, str):
            found["application"] = where
    version = getattr(context["dag_run"], "bundle_version", None)
    if version:
        found["bundle_version"] = str(version)
    return {**found, "fingerprint": digest.hexdigest()[:16]}


def templated_fields(task: BaseOperator) -> tuple[str, ...]:
    """The fields that hold Jinja, in files as well: Airflow has rendered them for the task's own run.

    >>> templated_fields(task)  # doctest: +SKIP
    ('sql',)
    """
    dag = task.get_dag()
    original = dag.get_task(task.task_id) if dag is not None else task  # the one that runs is a rendered copy
    return tuple(
        name for name in task.template_fields if any(sign in _unrendered(original, name) for sign in ("{{", "{%"))
    )


def _unrendered(task: Any, name: str) -> str:
    value = getattr(task, name, None)
    if isinstance(value, str) and value.endswith(tuple(task.template_ext)):
        environment = task.get_template_env()
        value = environment.loader.get_source(environment, value)[0]
    return str(value)


def _parts(task: BaseOperator) -> Iterator[bytes]:
    attributes: dict[str, Any] = vars(task)
    for name in _FILES:
        for each in str(attributes.get(name) or "").split(","):
            yield from _content(each)
    for name in _TEXTS:
        yield str(attributes.get(name) or "").encode()
    function = attributes.get("python_callable")
    if function is not None:
        try:
            yield inspect.getsource(function).encode()
        except (OSError, TypeError):  # its source is not at hand
            yield getattr(function, "__qualname__", "").encode()


def _content(name: str) -> Iterator[bytes]:
    """Yield the file in pieces; the name, if it is that of no file here."""
    try:
        if not name or not Path(name).is_file():
            yield name.encode()
            return
        with Path(name).open("rb") as content:
            while piece := content.read(_PIECE):
                yield piece
    except OSError as error:
        if error.errno == ENAMETOOLONG:
            yield name.encode()
            return
        raise UnreadableCodeError(
            f"expected to read {name}, which the job runs, found {error.strerror}; see that the worker's user may read "
            "it, and that the disk or share it lies on works"
        ) from error
