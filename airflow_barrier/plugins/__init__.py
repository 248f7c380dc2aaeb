"""What Airflow loads through the entry point `airflow.plugins`."""
