"""The HTTP face: events come in here, and operators look, change and measure. `create_app` puts it together."""

from contextlib import suppress

from flask import Flask

from app.api import (
    access,
    dead_letters,
    declare,
    description,
    events,
    health,
    metrics,
    parts,
    problems,
    reconciliations,
    replays,
    rules,
    targets,
)
from app.config.settings import Settings
from app.outbox.tokens import TokensUnknown

_BLUEPRINTS = (
    events.routes,
    targets.routes,
    rules.routes,
    declare.routes,
    dead_letters.routes,
    replays.routes,
    reconciliations.routes,
    health.routes,
    metrics.routes,
    description.routes,
)


def create_app(settings: Settings) -> Flask:
    """The API over the outbox that the settings name; connects when the first request needs it to.

    Raises `BadSettings` where they cannot be used, such as an unusable folder.
    """
    made = parts.make(settings)
    app = Flask("bucketwire", static_folder=None)
    app.url_map.strict_slashes = False  # a sender does not follow redirects; /v1/events/ is /v1/events
    app.url_map.merge_slashes = False
    parts.install(app, made)
    problems.install(app)
    access.install(app)
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


def _add_s3_face(app: Flask, made: parts.Parts) -> None:
    from app.api.s3.face import Face, Front  # noqa: PLC0415 - loads botocore: 0.1 s that no command of the CLI should pay

    app.wsgi_app = Front(Face(made), app.wsgi_app)  # type: ignore[method-assign]  # as Flask's documentation has it
