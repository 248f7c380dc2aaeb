"""What must be true before any test module is imported."""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import pytest

# Tests import `demo`, `dags` and `tests` from the checkout. At the end of the path, so that `airflow_barrier` is the
# installed wheel and not the checkout's folder of the same name.
sys.path.append(str(Path(__file__).parent))

# Threads of gRPC's, which a process has once it has asked Spark Connect, make a fork die before it is Spark's launcher.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"

# Its assertions stand outside of test modules, and modules of several folders import it.
pytest.register_assert_rewrite("tests.sinks.behaviour")

# Fixtures that several folders of tests share.
pytest_plugins = [
    "tests.support.reporting",
    "tests.support.slowness",
    "tests.support.waiting",
    "tests.support.spark",
    "tests.support.postgresql",
    "tests.support.kept",
    "tests.support.seeds",
    "tests.support.vault",
    "tests.support.airflow",
    "tests.support.rest_catalog",
    "tests.support.hive",
    "tests.support.object_store",
    "tests.support.nessie",
    "tests.support.glue",
    "tests.support.metastores",
    "tests.support.hdfs",
    "tests.support.kafka",
    "tests.support.pravega",
    "tests.support.registry",
    "tests.support.sharing",
    "tests.support.computing",
    "tests.support.drawing",
    "tests.support.checking",
    "tests.support.costs",
    "tests.support.watchdog",
]

# Importing Airflow writes its configuration into AIRFLOW_HOME, which would be the home directory of whoever runs this.
_airflow_home = tempfile.TemporaryDirectory(prefix="airflow-barrier-")
os.environ["AIRFLOW_HOME"] = _airflow_home.name
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"


def pytest_configure(config: pytest.Config) -> None:
    config.add_cleanup(_airflow_home.cleanup)
    if not version("apache-airflow-core").startswith("3.3."):  # older ones use what newer packages warn of
        config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning")
        config.addinivalue_line("filterwarnings", "ignore::FutureWarning")
