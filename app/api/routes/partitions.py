"""Show what waits in each partition of a target."""

from flask import Blueprint

from app.api.description import answers, target_of
from app.api.services import services
from app.api.token_scopes import READ, needs
from app.outbox.admin.partition_states import read_partitions
from app.resources.target import Partition, Partitions

routes = Blueprint("partitions", __name__)


@routes.get("/v1/targets/<type_name>/<name>/partitions")
@needs(READ, limited=True)
@answers(Partitions, "the partitions")
def partitions(type_name: str, name: str) -> Partitions:
    """Return what waits in each partition of a target, and which worker has leased it.

    In a partition at most 1,000 events are counted, of the 10,000 sequence numbers after its cursor; `more` says that
    there may be more.
    """
    target = target_of(type_name, name)
    return Partitions(
        target=target.arn(services().settings.region),
        partitions=[
            Partition.of(state, holder=state.holder or None) for state in read_partitions(services().database, target)
        ],
    )
