"""Where events are kept: the log, the cursors of targets, and the only code that writes delivery state."""
