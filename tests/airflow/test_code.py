"""The fingerprint of what a job's task runs."""

from __future__ import annotations

import hashlib
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import BaseOperator, Context

from airflow_barrier.operators._code import code_of
from airflow_barrier.protocol.errors import UnreadableCodeError

RUN = cast(Context, {"dag_run": SimpleNamespace(bundle_version=None)})
JAR = 64 * 2**20


class Submit(BaseOperator):
    """Has its application where operators of Spark have theirs."""

    def __init__(self, *, application: Path, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.application = str(application)


def test_a_large_application_is_not_held_in_memory(tmp_path: Path) -> None:
    jar = tmp_path / "job.jar"
    with jar.open("wb") as file:
        file.truncate(JAR)
    task = Submit(application=jar, task_id="job")
    tracemalloc.start()
    try:
        code_of(task, RUN)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < JAR / 8


def test_the_fingerprint_is_of_the_whole_content(tmp_path: Path) -> None:
    jar = tmp_path / "job.jar"
    content = bytes(range(256)) * 2**14  # some pieces long
    jar.write_bytes(content)
    task = Submit(application=jar, task_id="job")
    found = code_of(task, RUN)["fingerprint"]
    assert found == hashlib.sha256(b"Submit" + content).hexdigest()[:16]
    jar.write_bytes(content[:-1] + b"x")
    assert code_of(task, RUN)["fingerprint"] != found


def test_a_file_that_cannot_be_read_is_named() -> None:
    task = Submit(application=Path("/proc/self/mem"), task_id="job")  # whose first page nobody has
    with pytest.raises(UnreadableCodeError, match=r"to read /proc/self/mem, .* found Input/output error; see that"):
        code_of(task, RUN)


def test_of_a_name_that_no_file_can_have_the_name_counts() -> None:
    name = "x" * 5000
    found = code_of(Submit(application=Path(name), task_id="job"), RUN)["fingerprint"]
    assert found == hashlib.sha256(b"Submit" + name.encode()).hexdigest()[:16]
