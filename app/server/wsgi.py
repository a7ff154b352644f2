"""The WSGI application for gunicorn, with the environment's settings: `gunicorn app.server.wsgi:app`."""

import os
import sys
from collections.abc import Sequence

from prometheus_client import Metric

from app import logs, telemetry
from app.api.request_body import return_freed_blocks
from app.api.routes.metrics import scrape
from app.config.errors import BadSettings
from app.config.settings import Settings
from app.outbox.engine.db_errors import outbox_state
from app.server.application import create_app

_DO_NOT_RESTART = 3  # gunicorn's exit code of a worker that cannot boot: the master ends too


def _outbox_metrics() -> Sequence[Metric]:
    with app.app_context():
        return list(scrape().collect())


return_freed_blocks()
try:
    settings = Settings.from_environ(os.environ)
    logs.configure(settings.log_format)
    outbox_state.watch()
    telemetry.start("api")
    app = create_app(settings)
    telemetry.send_metrics(_outbox_metrics)
except BadSettings as error:
    sys.stderr.write(f"bucketwire: {error}\n")
    sys.exit(_DO_NOT_RESTART)
