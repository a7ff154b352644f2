"""Settings: what a target or the service can be told, how it is written, read, checked and kept."""
