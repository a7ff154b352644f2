"""Read the time series of the targets' counters."""

from typing import Any

from flask import Blueprint, Response, request

from app.api.auth import READ, may_see, needs, require_target
from app.api.serialization import (
    bad_value,
    format_time,
    json_response,
    parsed_number,
    parsed_target,
    parsed_time,
    refuse_unknown,
)
from app.api.services import services
from app.outbox.delivery_times import percentile
from app.outbox.engine.database import now_ms
from app.outbox.markers import NEVER
from app.outbox.series import FINE, RESOLUTIONS, Sample, read_series

routes = Blueprint("series", __name__)
_HOUR = 3_600_000  # ms
_MOST = 50_000  # samples in a response


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
        - {name: since, in: query, schema: {type: string},
           description: "at or after: RFC 3339, or ms since 1970; an hour ago unless given"}
        - {name: before, in: query, schema: {type: string}, description: "before: RFC 3339, or ms since 1970"}
      responses:
        200: {description: the samples, content: {application/json: {schema: AllSeries}}}
        default: Problem
    """
    refuse_unknown(request.args, ("target", "step", "since", "before"))
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
    series, room = [], _MOST
    for stored in targets:
        samples = read_series(
            services().database, stored.row_id, RESOLUTIONS[step], since=since, before=before, limit=room + 1
        )
        room -= len(samples)
        if room < 0:
            hint = "give a shorter time, one target, or step=300"
            raise bad_value("since", f"selects more than {_MOST} samples", hint)
        arn = stored.target.arn(services().settings.region)
        series.append({"target": arn, "samples": [_sample_json(sample) for sample in samples]})
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
