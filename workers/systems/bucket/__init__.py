"""S3, or a server that speaks its protocol, whose buckets are listed."""
