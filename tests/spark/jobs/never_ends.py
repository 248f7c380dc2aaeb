"""A job that is killed between its two writes."""

from __future__ import annotations

from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.job import epoch_job


@epoch_job
def never_ends(epoch: Epoch) -> None:
    epoch.spark.sql(f"INSERT INTO {epoch.target('shop.user_item_amount')} VALUES (1, 1, 1)")
    epoch.spark.sql("SELECT count(*) FROM range(0, 10000000000000, 1, 2) WHERE sin(id) > 2").collect()


if __name__ == "__main__":
    never_ends.main()
