"""The event log: append, read, route, retain, spool."""
