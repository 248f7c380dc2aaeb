"""The Spark jobs of the shopping topology. A job's file runs on Spark Connect and under spark-submit as it is."""
