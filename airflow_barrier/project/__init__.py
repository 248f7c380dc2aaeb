"""A deployment on one machine, to begin with: the project that `airflow-barrier init` writes, and its settings."""
