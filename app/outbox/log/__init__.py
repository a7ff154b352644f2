"""Append to the event log, read it, route its events, apply retention, and spool events."""
