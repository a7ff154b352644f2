"""Declared settings: the field types and how a field is declared."""
