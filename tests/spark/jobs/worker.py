"""A process like an Airflow worker's: it runs a job of hours on Spark Connect until a signal calls its on_kill."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from airflow_barrier.spark.connect import ConnectRun
from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.spec import EpochSpec

LONG = "SELECT count(*) FROM range(0, 10000000000000, 1, 2) WHERE sin(id) > 2"


def main(url: str, folder: str, session: str) -> int:
    run = ConnectRun(url, EpochSpec.loads(Path(folder, "spec.json").read_text()), session_id=session)
    killed = []

    def on_kill(*_: Any) -> None:
        killed.append(True)
        run.interrupt()

    def work_for_hours(epoch: Epoch) -> None:
        epoch.spark.sql(LONG).collect()

    signal.signal(signal.SIGTERM, on_kill)
    try:
        run.run(work_for_hours)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 3 if killed else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
