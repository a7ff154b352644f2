"""What both command lines, `app.cli` and `spark_jobs`, are made of: contexts, output, errors, parameter types."""
