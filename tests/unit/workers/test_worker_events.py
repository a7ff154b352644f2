"""What a worker sends for Flower from its loop."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.events.dispatcher import EventDispatcher
from kombu import Connection

from workers.broker_consumer import Dispatcher, Events


class Recorder(Dispatcher):
    """Keeps how an event would be sent."""

    published: Any = None

    def _publish(self, *arguments: Any, **options: Any) -> None:
        self.published = options


def test_no_event_is_tried_again_in_the_loop_whatever_celery_asks_for() -> None:
    app = Celery("x", broker="memory://", events=Events)
    assert issubclass(app.events.Dispatcher, Dispatcher)
    assert issubclass(Dispatcher, EventDispatcher)
    recorder = Recorder(Connection("memory://"), hostname="x", app=app)
    recorder.send("worker-heartbeat", freq=2, retry=True)
    assert recorder.published["retry"] is False
