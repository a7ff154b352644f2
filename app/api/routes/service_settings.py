"""Read and change the settings of MinIO's section `api`."""

from flask import Blueprint, Response, request

from app.api.auth import ADMIN, READ, needs
from app.api.request_body import json_object
from app.api.serialization import json_response
from app.api.services import services
from app.config.api_settings import ApiSettings, api_texts, sync_events
from app.config.fields.fields import fields_of

routes = Blueprint("settings", __name__)


@routes.get("/v1/settings/api")
@needs(READ)
def show() -> Response:
    """Show the settings.
    ---
    get:
      summary: Return the settings of the section `api`, and what decides each
      security: [{token: [read]}]
      responses:
        200: {description: the settings, content: {application/json: {schema: EffectiveApiSettings}}}
        default: Problem
    """
    stored = services().registry.api_settings()
    return json_response({"sync_events": sync_events(services().settings.sync_events, stored)._asdict()})


@routes.put("/v1/settings/api")
@needs(ADMIN)
def put() -> Response:
    """Change the settings.
    ---
    put:
      summary: Replace the settings of the section `api`
      description: >
        An omitted or empty setting gets its default. Workers use a change within a second. While the variable of a
        setting is set in the environment, it takes precedence, and `origin` says so.
      security: [{token: [admin]}]
      requestBody: {required: true, content: {application/json: {schema: ApiSettings}}}
      responses:
        200: {description: the settings, content: {application/json: {schema: EffectiveApiSettings}}}
        default: Problem
    """
    texts = api_texts(json_object(request))
    services().registry.put_api_settings(dict.fromkeys(fields_of(ApiSettings), "") | texts)
    return show()
