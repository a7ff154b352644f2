"""The Spark jobs: reconcile, backfill, scan, journal."""
