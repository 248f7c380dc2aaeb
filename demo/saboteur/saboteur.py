"""An Airflow plugin, for the demo only: it holds one task's process at the worst moment, to be killed there.

The first try of the job named in DEMO_VICTIM (`dag task timestamp`) stops after Spark has staged everything and before
the attempt is closed, writes down who it is, and waits. The demo then sends it a real SIGKILL. Of a task that submits a
driver it is the driver that stops there (`demo/held_driver.py`), and both are killed.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

if TYPE_CHECKING:
    from airflow_barrier.coordinator.staging import Ready


class Saboteur:
    @hookimpl
    def on_task_instance_running(self, previous_state: Any, task_instance: Any) -> None:
        dag_id, task_id, timestamp = os.environ["DEMO_VICTIM"].split()
        if (task_instance.dag_id, task_instance.task_id) != (dag_id, task_id) or task_instance.try_number > 1:
            return
        if task_instance.get_template_context()["data_interval_end"].isoformat() == timestamp:
            _hold_before_close(Path(os.environ["DEMO_HELD"]))


def _hold_before_close(note: Path) -> None:
    from airflow_barrier.operators.epoch import SparkEpochOperator

    connect, submit = SparkEpochOperator._connect, SparkEpochOperator._submit

    def held(self: SparkEpochOperator, ready: Ready) -> NoReturn:
        connect(self, ready)  # everything is staged; nobody has been told
        unfinished = note.with_suffix(".new")
        unfinished.write_text(json.dumps(_who(ready)))
        unfinished.replace(note)
        while True:
            signal.pause()

    def with_held_driver(self: SparkEpochOperator, ready: Ready, conf: Mapping[str, str] | None = None) -> None:
        os.environ.update(DEMO_TASK=json.dumps(_who(ready)), DEMO_JOB=str(self.application))
        self.application = str(Path(__file__).parents[1] / "held_driver.py")
        submit(self, ready, conf)

    SparkEpochOperator._connect = held  # type: ignore[method-assign]
    SparkEpochOperator._submit = with_held_driver  # type: ignore[method-assign]


def _who(ready: Ready) -> dict[str, int]:
    return {"pid": os.getpid(), "attempt_id": ready.attempt.attempt_id}


class SaboteurPlugin(AirflowPlugin):
    name = "saboteur"
    listeners = [Saboteur()]  # noqa: RUF012
