"""Jobs on PySpark: what targets hold is compared with what buckets hold, reported, and repaired (the extra `spark`)."""
