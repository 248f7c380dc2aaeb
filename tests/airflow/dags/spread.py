"""The examples `dags/shopping_teams` and `dags/shopping_assets`, over the sample of what the tills sent."""

import os
import runpy
import sys
from pathlib import Path

from airflow.sdk import DAG

CHECKOUT = Path(__file__).parents[3]

os.environ.setdefault("SHOPPING_LANDING", str(CHECKOUT / "tests" / "data" / "landing"))
sys.path.append(str(CHECKOUT / "dags"))

for folder, until in (("shopping_teams", "2017-01-05"), ("shopping_assets", "2017-01-08")):
    os.environ["SHOPPING_UNTIL"] = f"{until}T00:00:00+00:00"
    for file in sorted((CHECKOUT / "dags" / folder).glob("*.py")):
        dag: DAG = runpy.run_path(str(file))["dag"]
        globals()[dag.dag_id] = dag
        # Asset events of one partition in the same moment may start no run (docs/facts.md): one after the other.
        if dag.dag_id in ("shopping_assets_amounts", "shopping_assets_prices"):
            for task in dag.tasks:
                task.pool = "in_turn"
del dag
os.environ.pop("SHOPPING_UNTIL")
