"""The application that spark-submit runs for an SQL job: the statement travels in the epoch spec.

It has a folder of its own, because Python puts an application's folder in front of its path.
"""

from __future__ import annotations

from airflow_barrier.spark.submit import run_submitted

if __name__ == "__main__":
    run_submitted()
