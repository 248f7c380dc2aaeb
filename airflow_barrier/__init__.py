"""Timestamp barriers over many Spark jobs, coordinated by Apache Airflow: readers see all of an epoch or nothing of it.

Importing this package imports nothing else: a Spark driver, a DAG file and a REST client each take only their room.
"""
