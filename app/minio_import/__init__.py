"""Import from MinIO: the undelivered events of its targets and the rules of its buckets."""
