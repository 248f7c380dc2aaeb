"""Records that are text, of whatever source: CSV and JSON, value by value, in Spark."""
