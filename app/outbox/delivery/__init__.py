"""Manage delivery state: leases, settlements, parked events, dead letters, replays, counters."""
