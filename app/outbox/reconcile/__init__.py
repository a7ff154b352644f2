"""Register reconciliation runs and schedule them."""
