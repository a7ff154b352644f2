"""The long form of the acceptance tests that kill processes: see `tests.chaos.__main__`."""
