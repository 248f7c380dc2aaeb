from endless import endless

from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.job import epoch_job


@epoch_job
def by_submit(epoch: Epoch) -> None:
    endless(epoch, "killing.submitted")


if __name__ == "__main__":
    by_submit.main()
