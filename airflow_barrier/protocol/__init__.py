"""The barrier protocol as pure domain code: no I/O, no Airflow, no Spark, no SQL."""
