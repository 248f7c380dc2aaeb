"""The fingerprint of what a job's task runs."""

from __future__ import annotations

import hashlib
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from airflow.sdk import BaseOperator, Context

from airflow_barrier.operators._code import code_of

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
