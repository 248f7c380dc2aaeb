"""The steps of the protocol over MetaService, tables, sources and Spark. Knows no Airflow."""
