"""Assemble the API as the server runs it: every route, the console, and the signed APIs of S3 and of `mc admin`."""

from contextlib import suppress
from functools import partial

from flask import Flask, Response, g, request

from app import console, telemetry
from app.api import answer_forms, asyncapi, errors, openapi, services, token_scopes, tracing
from app.api.flask_app import App
from app.api.memory import BoundedAnswers
from app.api.request_counts import CountedRequests
from app.api.routes import (
    audit,
    buckets,
    dead_letters,
    doctor,
    events,
    health,
    manifest,
    metrics,
    partitions,
    reconciliations,
    replays,
    retries,
    rules,
    search,
    series,
    service_settings,
    sources,
    status,
    stream,
    target_test,
    targets,
    tokens,
)
from app.config.settings import Settings
from app.outbox.errors import TokensUnknown
from app.outbox.log.append import Receipt

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})  # they change nothing
_BLUEPRINTS = (
    events.routes,
    search.routes,
    stream.routes,
    targets.routes,
    sources.routes,
    buckets.routes,
    partitions.routes,
    target_test.routes,
    rules.routes,
    manifest.routes,
    service_settings.routes,
    dead_letters.routes,
    replays.routes,
    reconciliations.routes,
    audit.routes,
    series.routes,
    status.routes,
    doctor.routes,
    tokens.routes,
    retries.routes,
    health.routes,
    metrics.routes,
    openapi.routes,
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
        tracing.install(app, traces)  # first, so that a request without a valid token has a span, too
    token_scopes.install(app)
    health.install(app, opened.database)
    doctor.install(app, opened)
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

    streams = stream.install(app, opened.database, tls=bool(opened.settings.tls_cert))
    front = Front(S3App(opened, streams), AdminApp(opened), app.wsgi_app)
    counted = CountedRequests(BoundedAnswers(front, opened.memory), opened.request_counts)
    app.wsgi_app = counted  # type: ignore[method-assign]  # as Flask's documentation has it
