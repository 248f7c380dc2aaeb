"""What `airflow-barrier doctor` looks at. A new check is a function and its place in :data:`CHECKS`."""

from __future__ import annotations

from airflow_barrier.cli.doctor import airflow, dags, deployment, readers, spark
from airflow_barrier.cli.doctor.check import Check

#: In this order; one that needs another comes after it.
CHECKS: tuple[Check, ...] = (
    Check("packages", airflow.packages),
    Check("version of Airflow", airflow.features),
    Check("Airflow", airflow.components),
    Check("connection", deployment.connection),
    Check("MetaService", deployment.meta_service, needs=("connection",)),
    Check("catalog", deployment.catalog, needs=("connection",)),
    Check("catalogs of readers", readers.catalogs, needs=("MetaService", "catalog")),
    Check("DAGs", dags.parsed, bounds_itself=True),
    Check("jobs", dags.jobs, needs=("DAGs",)),
    Check("schedules", dags.schedules, needs=("DAGs",)),
    Check("tables", dags.tables, needs=("DAGs", "MetaService", "catalog")),
    Check("Spark", spark.spark, needs=("connection",)),
)
