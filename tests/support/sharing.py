"""Two processes share a run (`pytest -n 2 --dist loadgroup`): one has Spark and Airflow, the other does all the rest.

Tests of one group run in one process, one after another, so each server is still started once. The first group mostly
waits for Airflow's scheduler, the second computes.
"""

from __future__ import annotations

import pytest

_SPARK = frozenset({"spark_server", "airflow", "cluster"})
#: Folders whose tests ask for a server only while they run, or start drivers: two first downloads of jars into one
#: cache disturb each other.
_SPARK_FOLDERS = frozenset({"batching", "cluster", "mutation", "spark"})


@pytest.hookimpl(tryfirst=True)  # xdist's own hook reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        asks = _SPARK.intersection(getattr(item, "fixturenames", ())) or item.path.parent.name in _SPARK_FOLDERS
        item.add_marker(pytest.mark.xdist_group("spark" if asks else "rest"))
