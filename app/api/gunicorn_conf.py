"""Gunicorn's configuration file: `gunicorn --config python:app.api.gunicorn_conf app.api.wsgi:app`."""

import os

from app.api.server import options
from app.config.settings import Settings

globals().update(options(Settings.from_environ(os.environ)))
