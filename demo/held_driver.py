"""The application that a task of the demo submits instead of its own one, which it runs: it holds before its record.

Everything is staged then, as with a driver whose machine is lost at the worst moment. The environment says who is held.
"""

import json
import os
import runpy
import signal
from pathlib import Path

from airflow_barrier.spark import submit


def _hold(*_):
    note = Path(os.environ["DEMO_HELD"])
    unfinished = note.with_suffix(".new")
    unfinished.write_text(json.dumps({**json.loads(os.environ["DEMO_TASK"]), "driver": os.getpid()}))
    unfinished.replace(note)
    while True:
        signal.pause()


if __name__ == "__main__":
    submit._hand_over = _hold
    runpy.run_path(os.environ["DEMO_JOB"], run_name="__main__")
