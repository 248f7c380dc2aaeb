"""A job that takes what has come of a topic."""

from __future__ import annotations

import os
import sys

sys.path.append(os.path.dirname(__file__))

from counting import obey

from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.job import epoch_job


@epoch_job
def load(epoch: Epoch) -> None:
    obey("streaming", "load", epoch.barrier_id)
    epoch.source("numbers").writeTo(epoch.target("streaming.events")).append()


@epoch_job
def copy(epoch: Epoch) -> None:
    """The same by a driver of its own, and the jobs' tables agree at each barrier."""
    epoch.source("numbers").writeTo(epoch.target("streaming.copies")).append()


if __name__ == "__main__":
    copy.main()
