"""The outbox database: connections, timeouts, migrations."""
