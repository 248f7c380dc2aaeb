from counting import obey

from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.job import epoch_job


@epoch_job
def load(epoch: Epoch) -> None:
    obey("crashing_commit", "load", epoch.barrier_id)
    for table in ("events", "mirror"):
        epoch.spark.sql(f"INSERT INTO {epoch.target(f'crashing_commit.{table}')} VALUES (1, 1)")
