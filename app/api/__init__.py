"""The HTTP face: events come in here, and operators look, change and measure. `create_app` puts it together."""

from contextlib import suppress

from flask import Flask

from app.api import auth, errors, openapi, services
from app.api.routes import dead_letters, events, health, manifest, metrics, reconciliations, replays, rules, targets
from app.config.settings import Settings
from app.outbox.tokens import TokensUnknown

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
    """The API over the outbox that the settings name; connects when the first request needs it to.

    Raises `BadSettings` where they cannot be used, such as an unusable folder.
    """
    made = services.open_services(settings)
    app = Flask("bucketwire", static_folder=None)
    app.url_map.strict_slashes = False  # a sender does not follow redirects; /v1/events/ is /v1/events
    app.url_map.merge_slashes = False
    services.install(app, made)
    errors.install(app)
    auth.install(app)
    health.install(app, made.database)
    metrics.install(app, settings.database_url)
    for blueprint in _BLUEPRINTS:
        app.register_blueprint(blueprint)
    _add_s3_face(app, made)
    with suppress(TokensUnknown):
        made.tokens.required()  # read now, they still hold if the database goes away before the first request
    if made.feeder is not None:
        made.feeder.started()
    return app


def _add_s3_face(app: Flask, made: services.Services) -> None:
    from app.api.s3.wsgi_app import Front, S3App  # noqa: PLC0415 - loads botocore: 0.1 s that no command of the CLI should pay

    app.wsgi_app = Front(S3App(made), app.wsgi_app)  # type: ignore[method-assign]  # as Flask's documentation has it
