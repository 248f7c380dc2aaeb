"""An Airflow plugin, for the demo only: it holds one task's process at the worst moment, to be killed there.

The first try of the job named in DEMO_VICTIM (`dag task timestamp`) stops after Spark has staged everything and before
the attempt is closed, writes down who it is, and waits. The demo then sends it a real SIGKILL.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, NoReturn

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin


class Saboteur:
    @hookimpl
    def on_task_instance_running(self, previous_state: Any, task_instance: Any) -> None:
        dag_id, task_id, timestamp = os.environ["DEMO_VICTIM"].split()
        if (task_instance.dag_id, task_instance.task_id) != (dag_id, task_id) or task_instance.try_number > 1:
            return
        if task_instance.get_template_context()["data_interval_end"].isoformat() == timestamp:
            _hold_before_close(Path(os.environ["DEMO_HELD"]))


def _hold_before_close(note: Path) -> None:
    from airflow_barrier.spark.connect import ConnectRun

    run = ConnectRun.run

    def held(self: ConnectRun, job: Any) -> NoReturn:
        record = run(self, job)  # everything is staged; nobody has been told
        unfinished = note.with_suffix(".new")
        unfinished.write_text(json.dumps({"pid": os.getpid(), "attempt_id": record.attempt_id}))
        unfinished.replace(note)
        while True:
            signal.pause()

    ConnectRun.run = held  # type: ignore[method-assign]


class SaboteurPlugin(AirflowPlugin):
    name = "saboteur"
    listeners = [Saboteur()]  # noqa: RUF012
