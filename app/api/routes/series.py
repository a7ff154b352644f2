"""Read the time series of the targets' counters."""

from typing import Any

from flask import Blueprint, Response, request

from app.api.auth import READ, may_see, needs, require_target
from app.api.serialization import bad_value, json_response, parsed_number, parsed_target, parsed_time
from app.api.services import services
from app.outbox.delivery_times import percentile
from app.outbox.engine.database import now_ms
from app.outbox.markers import NEVER
from app.outbox.series import FINE, RESOLUTIONS, Sample, read_merged, read_series
from app.resources.declaration import format_time, refuse_unknown

routes = Blueprint("series", __name__)
_HOUR = 3_600_000  # ms
_MOST = 50_000  # samples in a response
_WIDEST = 90 * 86400  # seconds of samples that are merged into one


@routes.get("/v1/series")
@needs(READ, limited=True)
def show() -> Response:
    """Return time series.
    ---
    get:
      summary: Return the samples of every target's counters, or of one target's, oldest first
      description: >
        Every 10 seconds for a day, every 5 minutes for 90 days. At most 50,000 samples; a request for more is refused.
      security: [{token: [read]}]
      parameters:
        - {name: target, in: query, schema: {type: string}, description: "the target, as an ARN or type:name"}
        - {name: step, in: query, schema: {type: integer, enum: [10, 300], default: 10},
           description: seconds between the samples}
        - {name: width, in: query, schema: {type: integer, minimum: 10, maximum: 7776000},
           description: "seconds; of one target, samples of so long are merged: the last totals, the greatest backlog"}
        - {name: since, in: query, schema: {type: string},
           description: "at or after: RFC 3339, or ms since 1970; an hour ago unless given"}
        - {name: before, in: query, schema: {type: string}, description: "before: RFC 3339, or ms since 1970"}
      responses:
        200: {description: the samples, content: {application/json: {schema: AllSeries}}}
        default: Problem
    """
    refuse_unknown(request.args, ("target", "step", "width", "since", "before"))
    step = parsed_number("step", request.args.get("step"), FINE.step, least=1, most=NEVER)
    if step not in RESOLUTIONS:
        raise bad_value("step", "is not kept", f"give {' or '.join(map(str, RESOLUTIONS))} (seconds)")
    since = parsed_time("since", request.args.get("since"), now_ms() - _HOUR)
    before = parsed_time("before", request.args.get("before"), NEVER)
    registry = services().registry
    name = request.args.get("target")
    if name:
        require_target(parsed_target("target", name))
        targets = [registry.target(parsed_target("target", name))]
    else:
        targets = [stored for stored in registry.targets() if may_see(stored.target)]
    ids = [stored.row_id for stored in targets]
    database, resolution, most = services().database, RESOLUTIONS[step], _MOST + 1
    width = parsed_number("width", request.args.get("width"), 0, least=FINE.step, most=_WIDEST)
    if width and not name:
        raise bad_value("width", "merges the samples of one target", "give a target too")
    if width > step:
        found = read_merged(database, ids[0], resolution, width=width, since=since, before=before, limit=most)
    else:
        found = read_series(database, ids, resolution, since=since, before=before, limit=most)
    if len(found) > _MOST:
        hint = "give a shorter time, one target, or step=300"
        raise bad_value("since", f"selects more than {_MOST} samples", hint)
    samples: dict[int, list[dict[str, Any]]] = {row_id: [] for row_id in ids}
    for sample in found:
        samples[sample.target_id].append(_sample_json(sample))
    region = services().settings.region
    series = [{"target": stored.target.arn(region), "samples": samples[stored.row_id]} for stored in targets]
    return json_response({"step": step, "series": series})


def _sample_json(sample: Sample) -> dict[str, Any]:
    return {
        "at": format_time(sample.at),
        "recorded": sample.recorded,
        "delivered": sample.delivered,
        "superseded": sample.superseded,
        "failed": sample.failed,
        "dead_lettered": sample.dead_lettered,
        "discarded": sample.discarded,
        "backlog": sample.backlog,
        "oldest_age": _seconds(sample.oldest_age),
        "p50": _seconds(percentile(sample.times, 0.5)),
        "p99": _seconds(percentile(sample.times, 0.99)),
    }


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
