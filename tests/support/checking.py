"""What `make check` plays (``--check``): all that needs no server and takes no minutes, for the round while writing."""

from __future__ import annotations

import pytest

from tests.support.deployments import APART, SHARED
from tests.support.drawing import variant_of

#: Fixtures that start a server. PostgreSQL's, which starts with its first database, is told by the deployment.
_SERVERS = frozenset(
    {
        "airflow",
        "spark_server",
        "own_postgresql",
        "rest_server",
        "hive",
        "old_hive",
        "glue",
        "s3",
        "nessie",
        "cluster",
        "dbt",
        "pravega",
        "pravega_cluster",
    }
)
#: Deployments without a server.
_ON_FILES = frozenset({SHARED[0], APART[0]})
#: Folders that attack the protocol, or measure it.
_LONG = frozenset({"benchmarks", "crash", "model", "mutation", "postgresql", "races", "recovery", "scale", "stories"})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--check", action="store_true", help="play what needs no server and takes no minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("check"):
        return
    left = [item for item in items if not _is_quick(item)]
    if left:
        items[:] = [item for item in items if _is_quick(item)]
        config.hook.pytest_deselected(items=left)


def _is_quick(item: pytest.Item) -> bool:
    asked = set(getattr(item, "fixturenames", ()))
    on_server = "postgresql" in asked and _ON_FILES.isdisjoint(variant_of(item))
    is_long = item.get_closest_marker("drawn") is not None or not _LONG.isdisjoint(item.path.parts)
    return not (on_server or is_long or asked & _SERVERS)
