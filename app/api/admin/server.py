"""What `mc admin info` and `mc admin service restart` get."""

from collections import defaultdict
from importlib.metadata import version

from werkzeug.wrappers import Response

from app.api.admin.call import AdminCall, json_answer
from app.api.s3.errors import S3Error
from app.outbox.buckets import count_buckets


def info(call: AdminCall) -> Response:
    """Answer `GET info`: the ARNs of the enabled targets, their states, and this process as the only server."""
    settings = call.parts.settings
    targets = [stored for stored in call.parts.registry.targets() if stored.enabled]
    states = defaultdict(list)
    for stored in targets:
        state = "online" if stored.state == "running" else "offline"
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
