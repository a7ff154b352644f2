"""Iceberg in Spark: where the tables are, and commits that carry the position in the event log."""
