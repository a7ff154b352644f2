"""The HTTP API: frontends post events, and operators inspect, change and monitor. `create_app` assembles it."""

from contextlib import suppress
from functools import partial

from flask import Flask, Response, request

from app.api import auth, errors, openapi, services
from app.api.routes import dead_letters, events, health, manifest, metrics, reconciliations, replays, rules, targets
from app.config.settings import Settings
from app.outbox.tokens import TokensUnknown

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})  # they change nothing
_BLUEPRINTS = (
    events.routes,
    targets.routes,
    rules.routes,
    manifest.routes,
    dead_letters.routes,
    replays.routes,
    reconciliations.routes,
    health.routes,
    metrics.routes,
    openapi.routes,
)


def create_app(settings: Settings) -> Flask:
    """Create the API for the outbox in the settings; the first request that needs the database connects to it.

    Raises `BadSettings` for unusable settings, such as an unusable folder.
    """
    made = services.open_services(settings)
    app = Flask("bucketwire", static_folder=None)
    app.url_map.strict_slashes = False  # senders do not follow redirects; /v1/events/ is /v1/events
    app.url_map.merge_slashes = False
    services.install(app, made)
    errors.install(app)
    auth.install(app)
    health.install(app, made.database)
    metrics.install(app, settings.database_url)
    for blueprint in _BLUEPRINTS:
        app.register_blueprint(blueprint)
    app.after_request(partial(_wake_drain, made))
    _add_s3_face(app, made)
    with suppress(TokensUnknown):
        made.tokens.required()  # cached now, in case the database becomes unavailable before the first request
    if made.feeder is not None:
        made.feeder.started()
    return app


def _wake_drain(made: services.Services, response: Response) -> Response:
    """Have the drain run after whatever may have made work due: recorded events, a replay, a resumed target, a rule."""
    if request.method not in _SAFE and response.status_code < 300:
        made.wakeups.request()
    return response


def _add_s3_face(app: Flask, made: services.Services) -> None:
    from app.api.s3.wsgi_app import Front, S3App  # noqa: PLC0415 - loads botocore: 0.1 s that no command of the CLI should pay

    app.wsgi_app = Front(S3App(made), app.wsgi_app)  # type: ignore[method-assign]  # as Flask's documentation has it
