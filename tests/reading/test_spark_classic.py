"""What holds on Spark Connect holds in a driver of one's own: a process that has made either cannot make the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.project.java import find_java
from tests.support.shop import AMOUNT, PRICE, make_shop
from tests.support.spark import IVY
from tests.support.waiting import patience


@pytest.mark.timeout(600)
@pytest.mark.drawn("drivers of their own")
def test_a_classic_session_reads_one_barrier(tmp_path: Path) -> None:
    shop = make_shop(Settings.embedded(str(tmp_path)))
    for day, amount in ((1, 25), (2, 75)):
        barrier = shop.open(day)
        shop.process_all(barrier, [{"amount": amount, "price": 10 * amount}])
        shop.commit(barrier)
    environment = {**os.environ, "JAVA_HOME": str(Path(find_java()).resolve().parents[1]), "PYTHONWARNINGS": "error"}
    environment.pop("SPARK_CONNECT_MODE_ENABLED", None)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.reading.classic", str(tmp_path), str(IVY)],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(600),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "joined": [[25, 250]],
        "metadata": [[AMOUNT], [PRICE]],
        "both": [[250, 2, "{}"]],
        "view": [[250]],
        "temporary": [[3]],
        "temporary over the topology": "UnpinnableError",
        "pinned": [[250]],
        "write": "NotAReadError",
        "dataframe": 250,
        "left behind": ["now", "pinned", "three"],
    }
    assert shop.deployment.meta.leases.of("shopping") == []
    shop.deployment.close()
