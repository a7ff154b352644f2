"""The field types of settings, and how a setting is declared."""
