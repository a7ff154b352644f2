"""The whole service as one process group, as `bucketwire up` runs it."""
