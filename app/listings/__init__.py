"""Listings of buckets: the checks that each has to pass, and how one differs from what is known of its bucket.

What lists without Spark and what lists with it go by this; no module here knows the outbox, a worker or Spark.
"""
