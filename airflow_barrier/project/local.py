"""Settings of an Airflow and a Spark that run on one machine, for small data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

#: The class that spark-submit runs as a Spark Connect server.
CONNECT_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
#: Java options of a server or driver with small queries, each run once: compiling them well costs twice what it saves.
#: The first option alone has a code cache of 48 MB, which is full after some hundred queries: Java then throws compiled
#: code away, interprets it, and everything takes twice as long.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"


def connect_server_conf(port: int) -> dict[str, str]:
    """Spark's conf of a Connect server that only this machine reaches, beside the conf of its catalog."""
    return {
        "spark.master": "local[*]",
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }


#: Spark's conf that spends few cores on small data, not on planning and compiling for big data.
SMALL_DATA = {
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.extraJavaOptions": f"{QUICK_JAVA} -XX:+UseSerialGC",
}


def airflow_settings(home: Path, dags: Path, port: int) -> Mapping[str, str]:
    """Environment variables of an Airflow that only this machine reaches, with its database and logs in ``home``."""
    url = f"http://localhost:{port}"
    settings = {
        "CORE__DAGS_FOLDER": dags,
        "CORE__LOAD_EXAMPLES": False,
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": 5,
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": False,
        "CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "API__HOST": "127.0.0.1",
        "API__PORT": port,
        "API__BASE_URL": url,
        "API__WORKERS": 1,
        # A busy machine needs longer for a transaction than the five seconds that SQLite waits for one otherwise.
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}?timeout=60",
        "DAG_PROCESSOR__PARSING_PROCESSES": 1,
        # In seconds: after five minutes, which Airflow takes otherwise, nobody waits for a new DAG file any more.
        "DAG_PROCESSOR__REFRESH_INTERVAL": 10,
        "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": 0.5,
        # How late an executor learns that a task was deferred: our triggers hold a task back for so long.
        "WORKERS__MIN_HEARTBEAT_INTERVAL": 1,
        "USAGE_DATA_COLLECTION__ENABLED": False,
    }
    return {"AIRFLOW_HOME": str(home), **{f"AIRFLOW__{key}": str(value) for key, value in settings.items()}}
