"""How gunicorn serves the API."""
