"""What mirrors know of versioned objects beyond the retention of the event log."""
