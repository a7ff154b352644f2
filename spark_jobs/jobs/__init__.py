"""The Spark jobs: reconcile, backfill, scan, tables."""
