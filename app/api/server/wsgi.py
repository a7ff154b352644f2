"""The WSGI application for gunicorn, with the environment's settings: `gunicorn app.api.server.wsgi:app`."""

import os
import sys

from app import logs
from app.api import create_app
from app.config.errors import BadSettings
from app.config.settings import Settings

_DO_NOT_RESTART = 3  # gunicorn's exit code of a worker that cannot boot: the master ends too

try:
    settings = Settings.from_environ(os.environ)
    logs.configure(settings.log_format)
    app = create_app(settings)
except BadSettings as error:
    sys.stderr.write(f"bucketwire: {error}\n")
    sys.exit(_DO_NOT_RESTART)
