"""What a DAG's jobs say, looked at before a run: their SQL and their files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.errors import BarrierError

if TYPE_CHECKING:
    from airflow_barrier.operators.group import BarrierGroup
    from airflow_barrier.protocol.topology import Job

#: Stands for what Jinja makes of a part of the text when the task runs.
_LATER = "\0"
_JINJA = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)


@dataclass(frozen=True)
class Remark:
    """``hinders``: the job cannot run as it is; else somebody may have meant it so."""

    dag_id: str
    text: str
    hinders: bool


def remarks_on(groups: Sequence[BarrierGroup]) -> list[Remark]:
    """Return what is wrong, or looks wrong, in the groups' tasks. Needs no connection."""
    return [Remark(group.dag.dag_id, text, hinders) for group in groups for text, hinders in _of_group(group)]


def _of_group(group: BarrierGroup) -> Iterator[tuple[str, bool]]:
    jobs = group.jobs_by_task
    for task in group:
        if task.task_id in jobs:
            yield from _of_job(task, jobs[task.task_id])


def _of_job(task: Any, job: Job) -> Iterator[tuple[str, bool]]:
    from airflow_barrier.operators.epoch import SparkEpochOperator

    application = getattr(task, "application", None)
    if isinstance(application, str) and os.path.isabs(application) and not os.path.exists(application):
        text = f"expected its application {application} on this host, found no such file; correct the path, unless only"
        yield f"job {job.name}: {text} workers have it", False
    by_placeholders = isinstance(task, SparkEpochOperator)
    sql = getattr(task, "sql", None)
    if not isinstance(sql, str):
        return
    if sql.endswith(tuple(task.template_ext)):  # Airflow puts a file's text in place of its name when a DAG is loaded
        text = f"expected the template {sql} in the folder of its DAG or in template_searchpath, found no such file"
        yield f"job {job.name}: {text}; correct the name, in which Airflow resolves no Jinja", True
        return
    statement = _JINJA.sub(_LATER, sql)
    if by_placeholders and (fault := _placeholder_fault(statement, job)):
        yield fault, _LATER not in statement
    elif _LATER not in statement and (doubt := _syntax_doubt(statement)):
        yield f"job {job.name}: {doubt}", False


def _placeholder_fault(statement: str, job: Job) -> str | None:
    from airflow_barrier.spark.statement import check_for, check_names, tokens_of

    try:
        if _LATER in statement:
            check_names([token for token in tokens_of(statement) if _LATER not in token.text], job)
        else:
            check_for(statement, job)
    except BarrierError as error:
        return str(error)
    return None


def _syntax_doubt(statement: str) -> str | None:
    """Return what sqlglot does not understand, where it is installed (extra `reading`)."""
    try:
        import sqlglot
    except ModuleNotFoundError:
        return None
    from airflow_barrier.spark.statement import tokens_of

    plain = "".join(
        token.text if token.role != "placeholder" else "NULL" if token.name is None else f"`{token.kind}`"
        for token in tokens_of(statement)
    )
    try:
        sqlglot.parse(plain, dialect="spark")
    except sqlglot.errors.ParseError as error:
        found = error.errors[0]
        return (
            f"expected SQL that Spark can read, found {found['description']} at {found['highlight']!r} in line "
            f"{found['line']}, by sqlglot, which may know less than Spark; look at the statement"
        )
    except sqlglot.errors.TokenError as error:
        return f"expected SQL that Spark can read, found by sqlglot: {error}; look at the statement"
    return None
