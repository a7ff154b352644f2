"""The settings of each target type."""
