"""Import all that a worker of the API needs: processes that are forked later share its memory, and start at once."""

import app.api.admin.wsgi_app
import app.api.s3.wsgi_app
import app.outbox.admin.undelivered
import app.outbox.delivery.ready_targets
import app.outbox.log.group_commit
import app.outbox.log.spool
import app.outbox.sources.registry
import app.server.application
import app.server.gunicorn_worker
import app.wakeups  # noqa: F401 - imported for those that import this module
from app.config.declared_types import SOURCE_TYPES, TYPES

for _types in (TYPES, SOURCE_TYPES):
    dict(_types)  # imports their declarations
