"""The blocks of the tutorials that are played in `init`'s project, one after the other, on `airflow standalone` and a
Spark.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.airflow import LONG
from tests.support.ports import free_port
from tests.support.spark import IVY
from tests.tutorials.blocks import blocks_of
from tests.tutorials.terminals import Terminals

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"


@pytest.mark.timeout(LONG)
def test_what_the_tutorials_say_is_so(terminals: Terminals) -> None:
    pages = ("first-barrier.md", "last-tuesday.md")
    install, *blocks = (block for page in pages for block in blocks_of((TUTORIALS / page).read_text()))
    assert install.word == "install"  # the tests' environment stands in for it
    terminals.play(blocks, adapted)


def adapted(code: str) -> str:
    """Ports that nobody else on this machine has, and jars that were downloaded already."""
    ports = f"--spark-port {free_port()} --airflow-port {free_port()}"
    jars = f"echo 'spark.jars.ivy {IVY}' >> shop/spark.properties"
    return code.replace("airflow-barrier init shop\n", f"airflow-barrier init shop {ports}\n{jars}\n")
