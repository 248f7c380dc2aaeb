"""What a Spark driver sees, and how work is handed to Spark. Imports neither Airflow nor SQLAlchemy."""
