"""The example DAGs as a user's scheduler meets them: parsed in a fresh process, with nothing behind them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from demo.cast import DAGS

_PARSE = """
import importlib, json, sys
sys.path.append(sys.argv[1])
dag = importlib.import_module(sys.argv[2]).dag
edges = sorted([task.task_id, down] for task in dag.tasks for down in task.downstream_task_ids)
print(json.dumps({"edges": edges, "loaded": [m for m in ("pyspark", "pyiceberg", "pyarrow") if m in sys.modules]}))
"""


def _parse(dag: str) -> dict[str, list[list[str]]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PARSE, str(DAGS), dag], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    parsed: dict[str, list[list[str]]] = json.loads(done.stdout.splitlines()[-1])
    return parsed


@pytest.mark.parametrize("dag", ["shopping", "shopping_plain"])
def test_parsing_loads_neither_spark_nor_iceberg(dag: str) -> None:
    assert _parse(dag)["loaded"] == []


def test_edges_follow_from_sources_and_sinks() -> None:
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
    assert _parse("shopping")["edges"] == edges
    assert _parse("shopping_plain")["edges"] == sorted(between_jobs)
