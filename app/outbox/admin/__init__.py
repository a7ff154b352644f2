"""Show and change what operators see of deliveries: counters, attempts, retries, dead letters, replays, partitions."""
