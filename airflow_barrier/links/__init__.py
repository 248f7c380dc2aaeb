"""Links from a task to where its Spark work can be seen."""
