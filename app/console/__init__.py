"""The web console at `/console`: server-rendered pages over the public API, for people.

Each page calls the routes of the API within the process (`calls`), with the rights of the browser's session
(`session`): so the API's own checks decide what a visitor may see and do, and there is no second way to the outbox.
"""

from app.console.pages import routes
from app.console.views import (  # noqa: F401 - each registers its pages
    events,
    exports,
    reconciliations,
    rules,
    service,
    settings_forms,
    sign_in,
    targets,
    undelivered,
)

__all__ = ["routes"]
