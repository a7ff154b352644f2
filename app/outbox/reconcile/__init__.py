"""Reconciliation runs and their schedule."""
