"""Reproducible benchmarks, each beside its physical limit in the same run: `python -m bench`."""
