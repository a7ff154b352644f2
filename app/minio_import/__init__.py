"""Taking over from MinIO: the events that its targets have not got yet, and the rules of its buckets."""
