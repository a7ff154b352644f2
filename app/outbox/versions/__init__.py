"""Store the state of versioned objects for mirrors, beyond the retention of the event log."""
