"""Connect to the outbox database, with time limits, locks and the database's clock."""
