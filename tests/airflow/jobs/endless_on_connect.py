from endless import endless

from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.job import epoch_job


@epoch_job
def on_connect(epoch: Epoch) -> None:
    endless(epoch, "killing.connected")
