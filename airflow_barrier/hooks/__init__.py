"""Airflow's way to a deployment: the connection."""
