"""Declare targets, sources and rules in one document: parse it, plan the changes and apply them."""
