"""Deliver events: Celery tasks, leases, outcomes, retries, and the targets themselves."""
