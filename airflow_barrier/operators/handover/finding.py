"""Which adapter an operator has."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any, cast

from airflow_barrier.operators.handover import placeholder
from airflow_barrier.operators.handover.port import Adapter

_HERE = __name__.rpartition(".")[0]
_PROVIDERS = "airflow.providers"
#: class -> module here
ADAPTERS = {
    f"{_PROVIDERS}.apache.spark.operators.spark_submit.SparkSubmitOperator": "spark_submit",
    f"{_PROVIDERS}.apache.spark.operators.spark_sql.SparkSqlOperator": "spark_sql",
    f"{_PROVIDERS}.apache.spark.operators.spark_pyspark.PySparkOperator": "pyspark_task",
    f"{_PROVIDERS}.apache.livy.operators.livy.LivyOperator": "livy",
    f"{_PROVIDERS}.cncf.kubernetes.operators.spark_kubernetes.SparkKubernetesOperator": "spark_kubernetes",
    f"{_PROVIDERS}.databricks.operators.databricks.DatabricksSubmitRunOperator": "databricks_submit",
    f"{_PROVIDERS}.databricks.operators.databricks.DatabricksRunNowOperator": "databricks_saved_job",
    f"{_PROVIDERS}.databricks.operators.databricks.DatabricksTaskBaseOperator": "databricks_saved_job",
    f"{_PROVIDERS}.databricks.operators.databricks.DatabricksCreateJobsOperator": "databricks_saved_job",
    f"{_PROVIDERS}.amazon.aws.operators.emr.EmrAddStepsOperator": "emr_steps",
    f"{_PROVIDERS}.amazon.aws.operators.emr.EmrServerlessStartJobOperator": "emr_serverless",
    f"{_PROVIDERS}.amazon.aws.operators.emr.EmrContainerOperator": "emr_containers",
}


def adapter_of(operator: Any) -> Adapter | None:
    """The adapter of the operator's class, or of the next of its bases that has one; None for a stranger."""
    for cls in type(operator).__mro__:
        name = ADAPTERS.get(f"{cls.__module__}.{cls.__qualname__}")
        if name is not None:
            return cast(Adapter, import_module(f"{_HERE}.{name}"))
    if placeholder.is_in(operator):
        return cast(Adapter, placeholder)
    if isinstance(getattr(operator, "conf", ""), dict | None) and not _is_others_conf(type(operator)):
        return cast(Adapter, import_module(f"{_HERE}.conf_attribute"))
    return None


def _is_others_conf(cls: type) -> bool:
    """Whether ``conf`` is what an operator of a provider takes, of which none here hands it to Spark: the conf of a DAG
    run, say.
    """
    return any(
        base.__module__.startswith(f"{_PROVIDERS}.") and "conf" in inspect.signature(vars(base)["__init__"]).parameters
        for base in cls.__mro__
        if "__init__" in vars(base)
    )
