"""The example DAGs as a user's scheduler meets them: parsed in a fresh process, with nothing behind them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from demo.cast import DAGS
from demo.places import CHECKOUT
from tests.support.waiting import patience

_PARSE = """
import json, runpy, sys
sys.path.append(sys.argv[2])
names = runpy.run_path(sys.argv[1])
dag = names["barrier"].dag if "barrier" in names else names["dag"]
edges = sorted([task.task_id, down] for task in dag.tasks for down in task.downstream_task_ids)
sure = [task.task_id for task in dag.tasks if task.retries and task.retry_delay.total_seconds() <= 60]
unsure = sorted({task.task_id for task in dag.tasks} - set(sure))
loaded = [module for module in ("pyspark", "pyiceberg", "pyarrow") if module in sys.modules]
print(json.dumps({"unsure": unsure, "edges": edges, "loaded": loaded}))
"""


def _parse(file: Path) -> dict[str, list[Any]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PARSE, str(file), str(DAGS)],
        capture_output=True,
        text=True,
        timeout=patience(),
    )
    assert done.returncode == 0, done.stderr
    parsed: dict[str, list[Any]] = json.loads(done.stdout.splitlines()[-1])
    return parsed


@pytest.mark.parametrize(
    "dag",
    [
        "shopping",
        "shopping_plain",
        "shopping_reporting",
        "shopping_watch",
        "shopping_streams/shopping_streams",
        "shopping_database/shopping_database",
        "sales_existing",
        "sales_adopted",
    ],
)
def test_an_example_loads_neither_spark_nor_iceberg_and_its_tasks_are_tried_again_soon(dag: str) -> None:
    parsed = _parse(DAGS / f"{dag}.py")
    assert (parsed["loaded"], parsed["unsure"]) == ([], [])


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # what Airflow 3.3 asks of pathspec
def test_the_demos_airflow_finds_one_way_to_write_the_topology() -> None:
    """Its DAGs are not paused, and two that own the same tables refuse each other."""
    from airflow.utils.file import list_py_file_paths

    found = {Path(file).relative_to(DAGS).as_posix() for file in list_py_file_paths(DAGS)}
    assert found == {"shopping.py", "shopping_plain.py", "shopping_reporting.py"}


def test_edges_follow_from_inlets_and_outlets() -> None:
    between_jobs = [
        ["amount", "avg_price"],
        ["load", "amount"],
        ["load", "category_spend"],
        ["load", "price"],
        ["price", "avg_price"],
        ["products", "category_spend"],
    ]
    framed = [
        ["start", "load"],
        ["start", "products"],
        ["avg_price", "commit"],
        ["category_spend", "commit"],
    ]
    edges = sorted([f"shopping.{one}", f"shopping.{other}"] for one, other in [*between_jobs, *framed])
    assert _parse(DAGS / "shopping.py")["edges"] == edges
    assert _parse(DAGS / "shopping_plain.py")["edges"] == sorted(between_jobs)


@pytest.mark.parametrize(
    ("document", "topology", "edges"),
    [
        ("README.md", "till", "start>load load>amount amount>commit commit>deliver_amount"),
        ("docs/jobs.md", "shopping", "start>load load>amount load>price amount>commit price>commit"),
    ],
)
def test_a_documents_dag_is_one(document: str, topology: str, edges: str, tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", (CHECKOUT / document).read_text(), re.DOTALL)
    assert code is not None
    file = tmp_path / "documented.py"
    file.write_text(code[1])
    assert len([line for line in code[1].splitlines() if line]) <= 22
    parsed = _parse(file)
    assert parsed["edges"] == sorted([f"{topology}.{task}" for task in edge.split(">")] for edge in edges.split())
    assert parsed["unsure"] == []
