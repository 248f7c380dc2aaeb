"""Adds a row per barrier, and may die with it: after it has written, before it has said so."""

from __future__ import annotations

import os
import signal

from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.job import epoch_job


@epoch_job
def dying(epoch: Epoch) -> None:
    row = f"VALUES ({epoch.barrier_id}, {10 ** (epoch.barrier_id - 1)})"
    epoch.spark.sql(f"INSERT INTO {epoch.target('batched.events')} {row}")
    if os.environ.get("BARRIER_TEST_DIES_AT") == str(epoch.barrier_id):
        os.kill(os.getppid(), signal.SIGKILL)  # the JVM, which is our parent
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    dying.main()
