"""Assemble the API as the server runs it: every route, the console, and the signed APIs of S3 and of `mc admin`."""

from contextlib import suppress
from functools import partial

from flask import Flask, Response, g, request

from app import console, telemetry
from app.api import answer_forms, asyncapi, auth, description, errors, services
from app.api.request_body import BoundedAnswers
from app.api.request_counts import CountedRequests
from app.api.routes import (
    access,
    declaration,
    event_log,
    events,
    metrics,
    reconciliations,
    rules,
    service,
    sources,
    targets,
    undelivered,
)
from app.api.services import App
from app.config.settings import Settings
from app.outbox.errors import TokensUnknown
from app.outbox.log.append import Receipt

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})  # they change nothing
_BLUEPRINTS = (
    events.routes,
    event_log.routes,
    targets.routes,
    sources.routes,
    declaration.routes,
    rules.routes,
    undelivered.routes,
    reconciliations.routes,
    access.routes,
    service.routes,
    metrics.routes,
    description.routes,
    asyncapi.routes,
    console.routes,
)


def create_app(settings: Settings) -> Flask:
    """Create the API for the outbox in the settings; the first request that needs the database connects to it.

    Raises `BadSettings` for unusable settings, such as an unusable folder.
    """
    opened = services.open_services(settings)
    app = App()
    app.url_map.strict_slashes = False  # senders do not follow redirects; /v1/events/ is /v1/events
    app.url_map.merge_slashes = False
    services.install(app, opened)
    errors.install(app, answer_forms.refuse)
    if (traces := telemetry.tracing()) is not None:
        events.install_tracing(app, traces)  # first, so that a request without a valid token has a span, too
    auth.install(app)
    service.install_readiness(app, opened.database)
    service.install_doctor(app, opened)
    metrics.install(app, settings.database_url)
    for blueprint in _BLUEPRINTS:
        app.register_blueprint(blueprint)
    app.after_request(partial(_wake, opened))
    _add_signed_apps(app, opened)
    with suppress(TokensUnknown):
        opened.tokens.required()  # cached now, in case the database becomes unavailable before the first request
    if opened.feeder is not None:
        opened.feeder.started()
    return app


def _wake(opened: services.Services, response: Response) -> Response:
    """Have the drain or workers run after whatever made work due: recorded events, a replay, a resumed target."""
    if request.method not in _SAFE and response.status_code < 300:
        receipt: Receipt | None = g.get("receipt")
        if receipt is None:
            opened.wakeups.request()
        else:
            opened.wakeups.request_delivery(receipt.due)
    return response


def _add_signed_apps(app: Flask, opened: services.Services) -> None:
    # Imported here: botocore takes 0.1 s to load, which no command of the CLI should pay.
    from app.api.admin.wsgi_app import AdminApp  # noqa: PLC0415
    from app.api.s3.wsgi_app import Front, S3App  # noqa: PLC0415

    streams = event_log.install_streams(app, opened.database, tls=bool(opened.settings.tls_cert))
    front = Front(S3App(opened, streams), AdminApp(opened), app.wsgi_app)
    counted = CountedRequests(BoundedAnswers(front, opened.memory), opened.request_counts)
    app.wsgi_app = counted  # type: ignore[method-assign]  # as Flask's documentation has it
