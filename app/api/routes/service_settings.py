"""Read and change the settings of MinIO's section `api`."""

from flask import Blueprint, request

from app.api.description import answers, json_body
from app.api.request_body import json_object
from app.api.services import services
from app.api.token_scopes import ADMIN, READ, needs
from app.config.api_settings import ApiSettings, api_texts, sync_events
from app.config.fields.fields import fields_of
from app.resources.service import EffectiveApiSettings, EffectiveSetting

routes = Blueprint("settings", __name__)
_VALUES = ["on", "off", "", "true", "false", "1", "0", True, False, 1, 0, None]
_BODY = json_body(
    {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "sync_events": {
                "enum": _VALUES,
                "description": "empty or null: the default; `MINIO_API_SYNC_EVENTS` overrides it",
            }
        },
    }
)


@routes.get("/v1/settings/api")
@needs(READ)
@answers(EffectiveApiSettings, "the settings")
def show() -> EffectiveApiSettings:
    """Return the settings of the section `api`, and what decides each."""
    return _effective()


@routes.put("/v1/settings/api")
@needs(ADMIN)
@answers(EffectiveApiSettings, "the settings", content=_BODY)
def put() -> EffectiveApiSettings:
    """Replace the settings of the section `api`.

    An omitted or empty setting gets its default. Workers use a change within a second. While the variable of a setting
    is set in the environment, it takes precedence, and `origin` says so.
    """
    texts = api_texts(json_object(request))
    services().registry.put_api_settings(dict.fromkeys(fields_of(ApiSettings), "") | texts)
    return _effective()


def _effective() -> EffectiveApiSettings:
    stored = services().registry.api_settings()
    setting = sync_events(services().settings.sync_events, stored)
    return EffectiveApiSettings(sync_events=EffectiveSetting(**setting._asdict()))
