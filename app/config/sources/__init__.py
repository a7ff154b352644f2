"""The settings of each source type."""
