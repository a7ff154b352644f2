"""Read bucket listings: from S3, S3 Inventory, `mc ls` and Parquet."""
