"""Airflow's way to a deployment: the connection."""

# Airflow reads `airflow_local_settings` as it is loaded. Where that imports our operators, they need the hook, whose
# module must not have begun by then.
import airflow  # noqa: F401
