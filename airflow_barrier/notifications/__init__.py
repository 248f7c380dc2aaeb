"""Notifiers of Airflow's: somebody is told what happens to barriers."""
