"""The control: the same jobs in the same order over the same days, without barriers, onto the tables in `plain`.

As such pipelines are written today: edges in the DAG, each task after its own past so that no table ever takes a day
twice or out of order, each job reading whatever `main` is when it runs.
"""

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, get_current_context, task
from shopping_jobs.landing import FOLDER, PRODUCTS, SHOPPING

JOBS = Path(__file__).parent / "shopping_jobs"


@task
def plain(job: str) -> None:
    from shopping_jobs.plain import run_plain

    end: Any = get_current_context()["data_interval_end"]
    run_plain(JOBS / job, FOLDER, end, {source.name: source.schema for source in (SHOPPING, PRODUCTS)})


with DAG(
    "shopping_plain",
    schedule="@daily",
    start_date=datetime(2017, 1, 2, tzinfo=timezone.utc),
    end_date=datetime.fromisoformat(os.environ.get("SHOPPING_UNTIL", "2018-01-02T00:00:00+00:00")),
    catchup=True,
    max_active_runs=4,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=5), "depends_on_past": True},
) as dag:
    jobs = ("load.py", "products.py", "amount.py", "price.sql", "category_spend.py", "avg_price.py")
    load, products, amount, price, category_spend, avg_price = (
        plain.override(task_id=Path(job).stem)(job) for job in jobs
    )
    load >> [amount, price]
    [load, products] >> category_spend
    [amount, price] >> avg_price
