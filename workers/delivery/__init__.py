"""Delivery of one partition: read, decide, send, settle, retry."""
