"""The systems that events go to and come from: for each its client, its target, and its source if it has one.

A system is a package here. `target.py` has the adapter of the target type of its name, `source.py` the source of the
source types that name the system. `workers.targets` and `workers.sources` create them, and have what systems share.
"""
