"""Files to give to spark-submit as the application."""
