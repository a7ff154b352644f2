"""Delivery state: leases, settlements, parked events, dead letters, replays, counters."""
