"""The examples `dags/shopping_teams` and `dags/shopping_assets`, over the sample of what the tills sent."""

import os
import runpy
import sys
from pathlib import Path

from airflow.providers.standard.sensors.python import PythonSensor
from airflow.sdk import DAG

CHECKOUT = Path(__file__).parents[3]

os.environ.setdefault("SHOPPING_LANDING", str(CHECKOUT / "tests" / "data" / "landing"))
sys.path.append(str(CHECKOUT / "dags"))


def is_let_go(day: str) -> bool:
    """The test wants the run of the day; runs of days that the tills' DAG had go at once."""
    return day < "2017-01-06" or (Path(os.environ["BARRIER_TEST_FOLDER"]) / f"spread.{day}").exists()


for folder, until in (("shopping_teams", "2017-01-05"), ("shopping_assets", "2017-01-08")):
    os.environ["SHOPPING_UNTIL"] = f"{until}T00:00:00+00:00"
    for file in sorted((CHECKOUT / "dags" / folder).glob("*.py")):
        dag: DAG = runpy.run_path(str(file))["dag"]
        globals()[dag.dag_id] = dag
        # Asset events of one partition in the same moment may start no run (docs/facts.md): one after the other.
        if dag.dag_id in ("shopping_assets_amounts", "shopping_assets_prices"):
            for task in dag.tasks:
                task.pool = "in_turn"
        if dag.dag_id == "shopping_by_assets":
            first = dag.roots
            with dag:
                held = PythonSensor(task_id="let_go", python_callable=is_let_go, op_args=["{{ ds }}"], poke_interval=1)
            held >> first
del dag
os.environ.pop("SHOPPING_UNTIL")
