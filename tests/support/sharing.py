"""Two processes share a run (`pytest -n 2`): one has Spark and Airflow, the other does all the rest.

So each server is still started once, and two first downloads of jars do not disturb each other. The first one mostly
waits for Airflow's scheduler, the second computes.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

#: Folders and files of tests that ask for Spark or Airflow, or start drivers.
_ON_SPARK = (
    "tests/airflow/",
    "tests/batching/",
    "tests/catalogs/test_spark.py",
    "tests/cluster/",
    "tests/demo/",
    "tests/foreign/test_spark.py",
    "tests/hostile/",
    "tests/mutation/",
    "tests/races/test_spark_beside.py",
    "tests/reading/test_spark_classic.py",
    "tests/reading/test_spark_session.py",
    "tests/reading/test_rewriting_in_spark.py",
    "tests/sources/",
    "tests/spark/",
    "tests/tables/",
)
_SERVERS = frozenset({"airflow", "cluster", "spark_server"})


class _TwoGroups(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith(_ON_SPARK) else "rest"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _TwoGroups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        asked = _SERVERS.intersection(getattr(item, "fixturenames", ()))
        if asked and not item.nodeid.startswith(_ON_SPARK):
            raise pytest.UsageError(f"{item.nodeid} asks for {', '.join(asked)}: add its file to {__name__}._ON_SPARK")
