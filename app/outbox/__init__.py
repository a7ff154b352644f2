"""Store events: the event log, the cursors of targets, and the only code that writes delivery state."""
