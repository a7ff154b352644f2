"""Serve the API and the console with gunicorn: the application, its worker, and how clients' sockets are read."""
