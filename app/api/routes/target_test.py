"""Send a target a test event, by way of the log."""

import uuid
from urllib.parse import urlencode

from flask import Blueprint

from app.api.description import answers, target_of
from app.api.errors import ApiProblem, check_active
from app.api.services import services
from app.api.token_scopes import ADMIN, needs
from app.events.own_events import TEST_BUCKET, make_test_events
from app.outbox.engine.database import now_ms
from app.outbox.log.batch import QueueFull
from app.outbox.log.recorder import Recorder
from app.resources.declaration import Nothing
from app.resources.target import TargetTest

routes = Blueprint("target_test", __name__)


@routes.post("/v1/targets/<type_name>/<name>/test")
@needs(ADMIN, limited=True)
@answers(TargetTest, "the test event is recorded", body=Nothing, status=202)
def test(type_name: str, name: str, body: Nothing) -> TargetTest:  # noqa: ARG001 - nothing else is accepted
    """Record a marked test event for this target only, independent of the rules.

    It is delivered like any other event, after those that are pending; `history` is the address of its delivery state.
    A namespace gets a PUT and the DELETE of the same object, so that it keeps nothing of them.
    """
    target = target_of(type_name, name)
    registry = services().registry
    stored = registry.target(target)
    check_active(stored)
    namespace = getattr(registry.settings(stored), "format", "") == "namespace"
    now, key = now_ms(), uuid.uuid4().hex
    events = make_test_events(key, now, namespace=namespace)
    [receipt] = Recorder(services().database, only_target=target, action="target.test").record([events])
    if isinstance(receipt, Exception):
        raise receipt
    arn = target.arn(services().settings.region)
    if isinstance(receipt, QueueFull):
        raise ApiProblem("queue-full", f"the queue of {arn} is full; no test event was recorded", {"targets": [arn]})
    return TargetTest(
        target=arn,
        ids=[event.id for event in events],
        bucket=TEST_BUCKET,
        key=key,
        history=f"/v1/events?{urlencode({'bucket': TEST_BUCKET, 'key': key})}",
    )
