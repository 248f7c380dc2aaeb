"""Playing tests in an environment that has another Airflow or Spark than this one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.airflow import LONG
from tests.support.spark import SHARED_SERVER
from tests.support.waiting import patience

CHECKOUT = Path(__file__).parents[2]
_OF_THIS_RUN = ("PYTEST_", "AIRFLOW", "SPARK_", SHARED_SERVER)


def play_on(environment: str, story: str) -> None:
    """``environment``: what `scripts/venv_of.sh` makes, such as `airflow-3.1`. ``story``: a file of tests."""
    made = subprocess.run(["sh", "scripts/venv_of.sh", environment], cwd=CHECKOUT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    folder = f".venv-{environment}/bin"
    played = subprocess.run(
        [f"{folder}/pytest", "-n", "0", "-q", story],
        cwd=CHECKOUT,
        env={
            # pyspark leaves a variable that makes each later session one of Spark Connect
            **{name: text for name, text in os.environ.items() if not name.startswith(_OF_THIS_RUN)},
            "PATH": f"{CHECKOUT / folder}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=patience(LONG),
    )
    assert played.returncode == 0, f"{environment}: {story}\n{played.stdout[-20_000:]}"
