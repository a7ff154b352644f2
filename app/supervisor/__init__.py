"""Run the whole service as one process group, for `bucketwire up`."""
