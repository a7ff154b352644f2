"""How the source contract fills each type of queue."""
