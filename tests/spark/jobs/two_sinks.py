"""A job with two outlets whose driver dies where the environment says."""

from __future__ import annotations

import os
import signal

from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.job import epoch_job


def perhaps_die(where: str) -> None:
    """As if the machine were lost: the JVM, which is our parent, and we."""
    if os.environ.get("BARRIER_TEST_DIES") == where:
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


@epoch_job
def two_outlets(epoch: Epoch) -> None:
    row = f"VALUES ({epoch.barrier_id}, {10 ** (epoch.barrier_id - 1)})"
    epoch.spark.sql(f"INSERT INTO {epoch.target('dying.left')} {row}")
    perhaps_die("between its writes")
    epoch.spark.sql(f"INSERT INTO {epoch.target('dying.right')} {row}")
    perhaps_die("after its last write")


if __name__ == "__main__":
    two_outlets.main()
    perhaps_die("after its closing record")
