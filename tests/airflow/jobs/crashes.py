"""A job whose first driver and second driver wait, between their two writes, for what a test tells each of them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.job import epoch_job

#: Seconds after which a waiting driver gives up, so that a broken test leaves nothing behind.
_LONGEST = 300.0


@epoch_job
def load(epoch: Epoch) -> None:
    epoch.spark.sql(f"INSERT INTO {epoch.target('crashes.events')} VALUES (1, 1)")
    folder = Path(os.environ["BARRIER_TEST_FOLDER"])
    me = _who_am_i(folder)
    until = time.monotonic() + _LONGEST
    while not (folder / f"crashes-{me}-goes-on").exists():
        if time.monotonic() > until:
            raise TimeoutError(f"the {me} driver was told nothing for {_LONGEST:.0f} s")
        time.sleep(0.2)
    epoch.spark.sql(f"INSERT INTO {epoch.target('crashes.mirror')} VALUES (1, 1)")


def _who_am_i(folder: Path) -> str:
    try:
        (folder / "crashes-first").touch(exist_ok=False)
    except FileExistsError:
        (folder / "crashes-second").touch(exist_ok=False)
        return "second"
    return "first"


if __name__ == "__main__":
    load.main()
