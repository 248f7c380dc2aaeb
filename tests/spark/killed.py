"""A worker that compacts on Spark until it is killed, in a process of its own, which need not import Airflow."""

from __future__ import annotations

import signal
from multiprocessing.connection import Connection

from airflow_barrier.coordinator.compacting import Compactor, compact, open_compaction
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.spark.compacting import rewrite_files
from airflow_barrier.spark.connect import connect_session
from tests.support.runs import run_of


def compact_until_killed(settings: Settings, spark_url: str, pipe: Connection) -> None:
    """It says so when Spark has rewritten the second table, and does no more."""
    deployment, session = Deployment.connect(settings), connect_session(spark_url)
    yesterday = Compactor(run_of("upkeep/yesterday"), "upkeep/yesterday", "g", "killed")
    barrier = open_compaction(deployment, "shopping", None, yesterday)
    assert isinstance(barrier, Barrier)
    rewritten: list[str] = []

    def rewrite(table: str, branch: str) -> object:
        said = rewrite_files(session, deployment.spark_catalog, table, branch, {"min-input-files": "2"})
        rewritten.append(table)
        if len(rewritten) == 2:
            pipe.send("rewritten")
            signal.pause()
        return said

    compact(deployment, barrier, rewrite, yesterday)
