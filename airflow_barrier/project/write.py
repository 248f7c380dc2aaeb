"""The project that `airflow-barrier init` writes: a DAG, two jobs, declared tables, a Spark without docker."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.spark_conf import properties_of, spark_conf
from airflow_barrier.project.local import CONNECT_SERVER, SMALL_DATA, airflow_settings, connect_server_conf
from airflow_barrier.protocol.errors import ConfigurationError

_TEMPLATE = Path(__file__).parent / "template"
_FILES = sorted(file for file in _TEMPLATE.rglob("*") if file.is_file() and file.suffix != ".pyc")
#: Paths of these go unquoted through shells, properties files, JDBC's URLs and Hadoop's.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._-]+")


def write_project(folder: Path, spark_port: int, airflow_port: int) -> list[Path]:
    """Write the project into ``folder``, which is made, and return its files.

    Raises ConfigurationError if there is something in the folder already, or if its path cannot be used.
    """
    folder = folder.absolute()
    if not _PLAIN_PATH.fullmatch(str(folder)):
        raise ConfigurationError(
            f"{folder}: expected a path of letters, digits and the characters / . _ -, which Spark, Java and shells "
            "all read alike, found others; choose another folder"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder}: expected no such folder, or an empty one, found files; name another")
    written = {file.relative_to(_TEMPLATE): file.read_text() for file in _FILES}
    written |= {
        Path(".gitignore"): "airflow/\nspark/\nwarehouse/\n__pycache__/\n",
        Path("dags/.airflowignore"): "jobs/\n",  # they are no DAG files
        Path("env.sh"): _environment(folder, spark_port, airflow_port),
        Path("spark.properties"): _spark_properties(folder, spark_port),
        Path("start-spark.sh"): _START_SPARK,
    }
    for name, text in written.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "start-spark.sh").chmod(0o755)
    return sorted(folder / name for name in written)


def _environment(folder: Path, spark_port: int, airflow_port: int) -> str:
    connections = {
        "barrier_default": {"conn_type": "barrier", "extra": {"warehouse": str(folder / "warehouse")}},
        "spark_connect_default": {"conn_type": "spark_connect", "host": "sc://127.0.0.1", "port": spark_port},
    }
    variables = {
        **airflow_settings(folder / "airflow", folder / "dags", airflow_port),
        **{f"AIRFLOW_CONN_{conn_id.upper()}": json.dumps(each) for conn_id, each in connections.items()},
    }
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    if sys.prefix != sys.base_prefix:  # a terminal in which nobody has activated the virtual environment
        exports += f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH\n"
    return f"# Airflow's settings and the two connections of this project, for each terminal: . ./env.sh\n{exports}"


def _spark_properties(folder: Path, port: int) -> str:
    own = {**connect_server_conf(port), "spark.driver.host": "127.0.0.1", **SMALL_DATA, "spark.driver.memory": "1g"}
    catalog = spark_conf(Settings.embedded(str(folder / "warehouse"))).conf
    return (
        f"# A Spark Connect server on this machine, for small data.\n{properties_of(own)}\n"
        f"# The tables' catalog: what `airflow-barrier spark-conf` prints.\n{properties_of(catalog)}"
    )


_START_SPARK = f"""\
#!/bin/sh
# Spark on this machine, until Ctrl-C. The first start downloads Iceberg's jars from Maven Central (60 MB).
cd "$(dirname "$0")" || exit
mkdir -p warehouse spark && cd spark || exit
exec spark-submit --properties-file ../spark.properties --jars "$(python -m airflow_barrier.spark.guard)" \\
    --class {CONNECT_SERVER} spark-internal "$@"
"""
