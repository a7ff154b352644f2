"""Manage the outbox database: connections, timeouts, migrations."""
