"""What programs and the page are told about barriers: models, routes, and who may see and do what. Knows no Airflow."""
