"""Which adapter an operator has."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from airflow_barrier.operators.handover import placeholder
from airflow_barrier.operators.handover.port import Adapter
from airflow_barrier.protocol.errors import ConfigurationError

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


#: Entry points of other distributions: dotted path of an operator's class -> module with the adapter's functions.
GROUP = "airflow_barrier.adapters"
_FUNCTIONS = ("refusal", "spark_version", "hand_over")


def adapter_of(operator: Any) -> Adapter | None:
    """The adapter of the operator's class, or of the next of its bases that has one; None for a stranger.

    One that somebody registered goes before ours for the same class. Raises ConfigurationError if it is none.
    """
    for cls in type(operator).__mro__:
        name = f"{cls.__module__}.{cls.__qualname__}"
        if name in registered():
            return _loaded(registered()[name])
        if name in ADAPTERS:
            return cast(Adapter, import_module(f"{_HERE}.{ADAPTERS[name]}"))
    return cast(Adapter, placeholder) if placeholder.is_in(operator) else None


@cache
def registered() -> dict[str, EntryPoint]:
    """Looked up once in a process: it reads the metadata of all that is installed."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _loaded(entry: EntryPoint) -> Adapter:
    what = f"entry point {entry.name} = {entry.value} of group {GROUP}"
    try:
        adapter = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"{what}: expected an adapter there, found {error}; correct the entry point, and install its package again"
        ) from error
    missing = [name for name in _FUNCTIONS if not callable(getattr(adapter, name, None))]
    if missing:
        raise ConfigurationError(
            f"{what}: expected the functions {', '.join(_FUNCTIONS)} there, found none named {', '.join(missing)}; "
            "airflow_barrier.operators.handover.port.Adapter says what each does"
        )
    return cast(Adapter, adapter)
