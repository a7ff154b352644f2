"""The outbox database's schema, step by step (alembic)."""
