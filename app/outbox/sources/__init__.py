"""Sources: their settings and states, the lease of the one worker that pulls, and what it records."""
