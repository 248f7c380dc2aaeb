"""Spark jobs for the DAGs of tests: tiny data, and files by which a test holds a job up or makes it fail.

In namespace ``n``, `load` adds one row per barrier to `n.events`, worth 10 to the power of the barrier's id less one,
so that a total of 111 says: barriers 1, 2 and 3, each once.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.job import EpochJob, epoch_job

#: Seconds after which a held job fails, so that a broken test leaves nothing behind.
_LONGEST_HOLD = 300.0


def load_of(namespace: str) -> EpochJob:
    """A root job."""

    @epoch_job
    def load(epoch: Epoch) -> None:
        obey(namespace, "load", epoch.barrier_id)
        rows = epoch.spark.range(1).selectExpr("1 AS k", f"CAST({10 ** (epoch.barrier_id - 1)} AS BIGINT) AS n")
        rows.writeTo(epoch.target(f"{namespace}.events")).append()

    return load


def total_sql(namespace: str) -> str:
    """An SQL job that keeps a sum."""
    return f"""
        MERGE INTO {{target:{namespace}.totals}} t
        USING (SELECT k, sum(n * _weight) AS d FROM {{changes:{namespace}.events}} GROUP BY k) s
        ON t.k = s.k
        WHEN MATCHED THEN UPDATE SET n = t.n + s.d
        WHEN NOT MATCHED THEN INSERT (k, n) VALUES (s.k, s.d)
    """


def marker(kind: str, namespace: str, job: str, barrier_id: int) -> Path:
    """The file that makes a job ``hold`` or ``fail`` at a barrier."""
    return Path(os.environ["BARRIER_TEST_FOLDER"]) / f"{kind}-{namespace}-{job}-{barrier_id}"


def obey(namespace: str, job: str, barrier_id: int) -> None:
    """Do what the test's markers say."""
    if marker("fail", namespace, job, barrier_id).exists():
        raise RuntimeError(f"{job} fails at barrier {barrier_id}, as the test wants")
    until = time.monotonic() + _LONGEST_HOLD
    while marker("hold", namespace, job, barrier_id).exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{job} was held at barrier {barrier_id} for {_LONGEST_HOLD:.0f} s")
        time.sleep(0.2)
