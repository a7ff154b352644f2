"""Serve the API with gunicorn."""
