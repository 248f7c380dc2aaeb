"""The application that spark-submit runs for a delivery: what it takes of its tables travels in an order."""

from __future__ import annotations

from airflow_barrier.spark.extracting import run_ordered

if __name__ == "__main__":
    run_ordered()
