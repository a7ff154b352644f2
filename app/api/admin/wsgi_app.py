"""Answer MinIO's admin API: verify the signature, run the operation, or refuse it in the JSON that `mc` prints.

Of the operations, `mc admin info` and `mc admin service restart` are here, those of settings in `config_kv`.
"""

import logging
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from importlib.metadata import version
from urllib.parse import unquote

import orjson
from werkzeug.wrappers import Request, Response

from app.api.admin import config_kv
from app.api.admin.call import AdminCall, json_answer
from app.api.request_marks import set_route
from app.api.s3.errors import S3Error
from app.api.s3.signature import Received
from app.api.s3.signed_app import SignedApp, actor_of
from app.api.services import Services
from app.config.errors import BadSettings
from app.outbox import audit
from app.outbox.buckets import count_buckets
from app.outbox.delivery.availability import with_failing
from app.outbox.registry import ReadOnlyTarget, TargetInUse
from app.outbox.targets import OPENED, UnknownTarget
from app.resources.refusal import ADMIN_ROUTE


def info(call: AdminCall) -> Response:
    """Answer `GET info`: the ARNs of the enabled targets, their states, and this process as the only server.

    A target is online if a worker has opened it with its present settings, and nothing has failed at it since.
    """
    settings = call.parts.settings
    enabled = [stored for stored in call.parts.registry.targets() if stored.enabled]
    with call.parts.database.reading() as connection:
        targets = with_failing(connection, enabled)
    states = defaultdict(list)
    for stored in targets:
        state = "online" if stored.state == "running" and stored.opening == OPENED else "offline"
        states[stored.target.type].append({stored.target.name: {"status": state}})
    place = call.request.host
    server = {
        "state": "online",
        "endpoint": place,
        "uptime": call.uptime,
        "version": version("bucketwire"),
        "network": {place: "online"},
        "edition": "Bucketwire",
    }
    message = {
        "mode": "online",
        "region": settings.region,
        "sqsARN": [stored.target.arn(settings.region) for stored in targets],
        "buckets": {"count": count_buckets(call.parts.database)},
        "services": {"notifications": [{kind: named} for kind, named in states.items()]},
        "backend": {"backendType": "Bucketwire"},
        "servers": [server],
    }
    return json_answer(message)


def service(call: AdminCall) -> Response:
    """Answer `POST service?action=restart`: yes, and nothing happens, because settings are in force at once."""
    action = call.parameter("action")
    if action != "restart":
        message = f"{action[:40]} is not part of this service: stop its processes by what started them."
        raise S3Error("NotImplemented", message)
    if call.parameter("type") != "2":  # clients before 2024
        return Response()
    dry_run = call.parameter("dry-run") == "true"
    return json_answer({"action": action, "dryRun": dry_run, "results": [{"host": call.request.host}]})


log = logging.getLogger("bucketwire.api")
_MAX_MESSAGE_CHARACTERS = 4096  # characters of a message

# By method and the path below /minio/admin/v3/.
_CALLS: Mapping[tuple[str, str], Callable[[AdminCall], Response]] = {
    ("GET", "get-config-kv"): config_kv.get,
    ("PUT", "set-config-kv"): config_kv.set_,
    ("DELETE", "del-config-kv"): config_kv.delete,
    ("GET", "help-config-kv"): config_kv.help_,
    ("GET", "config"): config_kv.export,
    ("PUT", "config"): config_kv.import_,
    ("GET", "info"): info,
    ("POST", "service"): service,
}
_NO_HISTORY = re.compile(r"(list|clear|restore)-config-history-kv")


class AdminApp(SignedApp):
    """MinIO's admin API of one process, as a WSGI application. Every call needs a key with the scope admin."""

    route = ADMIN_ROUTE

    def __init__(self, parts: Services) -> None:
        super().__init__(parts)
        self._started = time.monotonic()

    def answer(self, request: Request, received: Received, number: str) -> Response:  # noqa: ARG002 - only S3 needs it
        """Verify the signature, for any region as MinIO does, and run the operation."""
        seal = self.authenticate(received, scope="admin", region="")
        uptime = int(time.monotonic() - self._started)
        name = unquote(received.path).removeprefix("/minio/admin/v3/")
        handler = _find_handler(received.method, name)
        via = f"{received.method} /minio/admin/v3/{name}"
        set_route(request.environ, via)
        try:
            with audit.acting(actor_of(seal, request, via)):
                return handler(AdminCall(self._parts, request, received, seal, uptime))
        except BadSettings as error:
            raise S3Error("XMinioConfigError", str(error)[:_MAX_MESSAGE_CHARACTERS]) from None
        except UnknownTarget as error:
            raise S3Error("XMinioConfigNotFoundError", str(error)) from None
        except ReadOnlyTarget as error:
            raise S3Error("XMinioAdminConfigEnvOverridden", str(error)) from None
        except TargetInUse as error:
            raise S3Error("XMinioConfigError", f"{error} (`bucketwire target rm --force`)") from None

    def refuse(self, error: S3Error, request: Request, number: str) -> Response:
        """Write the error as MinIO's admin API does."""
        members = {"Code": error.code, "Message": error.message, "Resource": request.path}
        body = orjson.dumps(members | {"RequestId": number, "HostId": ""})
        return Response(b"" if request.method == "HEAD" else body, error.status, mimetype="application/json")


def _find_handler(method: str, name: str) -> Callable[[AdminCall], Response]:
    handler = _CALLS.get((method, name))
    if handler is not None:
        return handler
    if _NO_HISTORY.fullmatch(name):
        raise S3Error("NotImplemented", "Bucketwire keeps no history of settings; `mc admin config export` saves them.")
    raise S3Error(
        "NotImplemented",
        f"{name[:80]} is not part of this service: Bucketwire delivers notifications, and has settings of targets "
        "(config), info and service restart. Send other commands to the storage.",
    )
