"""The tasks: a few lines each, no decision."""

from app.config.arn import parse_arn
from app.outbox.leases import Offer
from workers import context
from workers.celery import app, queue, queue_name, settings

_STALE = 60  # seconds after which a hint is not worth reading: the drain has published another


@app.task(name="drain", send_events=False)
def drain() -> int:
    """Offer lanes with due work to their targets' queues. Not shown in Flower: it runs many times a second."""
    return context.current().drain(_publish)


@app.task(name="deliver")
def deliver(arn: str, lanes: str) -> str:
    """Work off some lanes of a target."""
    _, target = parse_arn(arn)
    return context.current().deliver(target, context.parse_lanes(lanes))


@app.task(name="purge")
def purge() -> str:
    """Remove old events from the log's tail."""
    return f"purged={context.current().purge()}"


def _publish(offer: Offer) -> None:
    name = queue_name(offer.target)
    if name not in app.amqp.queues:
        app.amqp.queues.add(queue(name))
    arn = offer.target.arn(settings.region)
    deliver.apply_async((arn, context.lanes_text(offer.lanes)), queue=name, expires=_STALE)
