"""Consistent reading: SQL whose tables are pinned to one barrier, and engines other than Spark. Knows no Airflow."""
