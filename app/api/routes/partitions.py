"""Show what waits in each partition of a target."""

from flask import Blueprint, Response

from app.api.auth import READ, needs
from app.api.serialization import json_response, target_of
from app.api.services import services
from app.outbox.delivery.partition_states import read_partitions
from app.resources.declaration import format_time

routes = Blueprint("partitions", __name__)


@routes.get("/v1/targets/<type_name>/<name>/partitions")
@needs(READ, limited=True)
def partitions(type_name: str, name: str) -> Response:
    """Show a target's partitions.
    ---
    get:
      summary: Return what waits in each partition of a target, and which worker has leased it
      description: >
        In a partition at most 1,000 events are counted, of the 10,000 sequence numbers after its cursor; `more` says
        that there may be more.
      security: [{token: [read]}]
      parameters: [target_type, target_name]
      responses:
        200: {description: the partitions, content: {application/json: {schema: Partitions}}}
        default: Problem
    """
    target = target_of(type_name, name)
    return json_response(
        {
            "target": target.arn(services().settings.region),
            "partitions": [
                {
                    "partition": each.partition,
                    "position": each.position,
                    "pending": each.pending,
                    "parked": each.parked,
                    "parked_objects": each.parked_objects,
                    "more": each.more,
                    "lease": each.lease,
                    "holder": each.holder or None,
                    "leased_until": format_time(each.leased_until),
                }
                for each in read_partitions(services().database, target)
            ],
        }
    )
