"""The blocks of *your own DAG*: one that is there gets barriers, and loses them again."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_barrier.project.local import airflow_settings
from tests.support.airflow import LONG
from tests.support.ports import free_port
from tests.support.spark import IVY
from tests.tutorials.blocks import blocks_of
from tests.tutorials.terminals import Terminals

CHECKOUT = Path(__file__).parents[2]
PAGE = CHECKOUT / "docs" / "tutorials" / "your-own-dag.md"


@pytest.mark.timeout(LONG)
@pytest.mark.drawn("stories of Airflow")
@pytest.mark.touches("coordinator/leaving.py", "coordinator/adopting.py", "operators/handover/spark_sql.py")
def test_what_the_tutorial_says_is_so(terminals: Terminals) -> None:
    mine = terminals.folder / "mine"
    settings = dict(airflow_settings(mine / "airflow", mine / "dags", free_port()))
    del settings["AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION"]  # a person's Airflow pauses what is new
    terminals.play(blocks_of(PAGE.read_text()), adapted, CHECKOUT=str(CHECKOUT), **settings)


def adapted(code: str) -> str:
    """Jars that were downloaded already."""
    conf = "cat > spark/spark-defaults.conf <<END\n"
    return code.replace(conf, f"{conf}spark.jars.ivy {IVY}\nspark.ui.enabled false\n")
