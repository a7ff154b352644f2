"""Compare the schema of the outbox database with the one that this code needs, and migrate it."""
