"""The service at a steady rate for an hour: see `tests.soak.__main__`."""
