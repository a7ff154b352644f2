"""Targets and rules declared together in one document: what it may say, what it would change, and changing it."""
