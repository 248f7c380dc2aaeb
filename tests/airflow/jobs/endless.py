"""Spark work that only ends when somebody ends it."""

from __future__ import annotations

from airflow_barrier.spark.epoch import Epoch


def endless(epoch: Epoch, table: str) -> None:
    numbers = epoch.spark.range(0, 10**15, 1, 2).selectExpr("1 AS k", "id AS n")
    numbers.where("n % 3 = 5").writeTo(epoch.target(table)).append()
