"""A submitted job that keeps what Spark shows of it, and all that Spark was told, for the test to look into."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.request import urlopen

from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.job import epoch_job


@epoch_job
def load(epoch: Epoch) -> None:
    epoch.spark.sql(f"INSERT INTO {epoch.target('vault.events')} VALUES (1, 1)")
    context = epoch.spark.sparkContext
    told = Path(os.environ["BARRIER_TEST_FOLDER"], "vault")
    told.mkdir()
    (told / "conf").write_text("\n".join(f"{key}={value}" for key, value in context.getConf().getAll()))
    api = f"api/v1/applications/{context.applicationId}"
    for page in ("environment/", "SQL/", "jobs/", "stages/", "executors/", f"{api}/environment", f"{api}/sql"):
        with urlopen(f"{context.uiWebUrl}/{page}", timeout=30) as answer:
            (told / page.replace("/", "_")).write_bytes(answer.read())


if __name__ == "__main__":
    load.main()
