"""Jobs on PySpark: compare targets with buckets, report and repair drift, backfill, scan (the extra `spark`)."""
