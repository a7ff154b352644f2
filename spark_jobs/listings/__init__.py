"""Bucket listings: S3, S3 Inventory, mc, Parquet."""
