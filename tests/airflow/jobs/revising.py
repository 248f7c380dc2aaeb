import os
from pathlib import Path

from counting import mirror_of, obey

from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.job import epoch_job


@epoch_job
def load(epoch: Epoch) -> None:
    """As in counting.py, and with another factor once a person has corrected the day."""
    obey("revising", "load", epoch)
    corrected = Path(os.environ["BARRIER_TEST_FOLDER"]) / f"corrected-revising-{epoch.barrier_id}"
    factor = int(corrected.read_text()) if corrected.exists() else 1
    value = factor * 10 ** (epoch.barrier_id - 1)
    rows = epoch.spark.range(1).selectExpr("1 AS k", f"CAST({value} AS BIGINT) AS n")
    rows.writeTo(epoch.target("revising.events")).append()


mirror = mirror_of("revising")
