"""Reports as HTML, Parquet and JSON lines."""
