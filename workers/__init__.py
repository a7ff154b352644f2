"""What takes events out: leases at work, outcomes, retries, and the targets themselves."""
