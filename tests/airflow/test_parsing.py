"""DAG files are parsed often, and everywhere: without a MetaService and without loading engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.airflow import DAGS
from tests.support.waiting import patience

_PARSE = """
import json, sys
from tests.support.dags import DagBag, stored

ENGINES = {"pyspark", "pyiceberg", "pyarrow", "pandas", "grpc", "sqlglot", "duckdb"}
sys.path += sys.argv[1:]  # as the DAG processor does
bags = [DagBag(folder) for folder in sys.argv[1:]]
dags = {name: dag for bag in bags for name, dag in bag.dags.items()}
again = {name: stored(dag) for name, dag in dags.items()}
print(json.dumps({
    "errors": {file: text for bag in bags for file, text in bag.import_errors.items()},
    "engines": sorted(ENGINES & set(sys.modules)),
    "types": {task.task_id: task.task_type for dag in again.values() for task in dag.tasks},
    "edges": {task.task_id: sorted(task.downstream_task_ids) for dag in again.values() for task in dag.tasks},
}))
"""


def test_parsing_needs_no_metaservice_and_loads_no_engine(tmp_path: Path) -> None:
    nobody = {"conn_type": "barrier", "extra": {"metaservice_url": "postgresql://nobody@127.0.0.1:1/none"}}
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
        "AIRFLOW_CONN_BARRIER_DEFAULT": json.dumps(nobody),
    }
    folders = [str(DAGS), str(DAGS.parents[2] / "dags")]
    command = [sys.executable, "-c", _PARSE, *folders]
    parsed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=patience())
    assert parsed.returncode == 0, parsed.stderr
    found = json.loads(parsed.stdout.splitlines()[-1])
    assert found["errors"] == {}
    assert found["engines"] == []
    # a task keeps its operator's name, and has its edges, after it went through Airflow's database
    assert found["types"]["submitted.load"] == "SparkSubmitOperator"
    assert found["edges"]["recovery.start"] == ["recovery.load"]
    assert found["edges"]["recovery.load"] == ["recovery.mirror", "recovery.total"]
    assert found["edges"]["recovery.total"] == ["recovery.commit"]
    assert found["edges"]["shopping.avg_price"] == ["shopping.commit"]
