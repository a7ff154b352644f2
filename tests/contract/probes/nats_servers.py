"""Servers of NATS with other configurations, and what the tests of its three protocols ask in common."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from app.events.model import Event
from tests import services
from tests.contract.probes.nats import Core, Nats
from tests.contract.probes.nats_wire import Received
from tests.support import cloud_events
from workers.targets import payloads


@dataclass(eq=False)
class Configured(services.Nats):
    """A server with a login of another kind, or more in its configuration."""

    login: str = ""
    more: str = ""

    def configuration(self) -> str:
        text = super().configuration()
        return (re.sub(r"authorization .*\n", lambda _: self.login, text) if self.login else text) + self.more


def at(server: services.Nats) -> Nats:
    """What reaches this server, by user and password."""
    probe = Core.__new__(Core)
    probe.server = server  # type: ignore[assignment]  # nobody listens there
    return probe


def assert_cloud_event(event: Event, received: Received, payload: str) -> None:
    """The message is the event's CloudEvent, by the binding for NATS."""
    version, *lines = received.headers.rstrip("\r\n").split("\r\n")
    assert version == "NATS/1.0"
    headers = dict(line.split(": ", 1) for line in lines)
    if payload == "cloudevents":
        assert headers["Content-Type"] == "application/cloudevents+json; charset=utf-8"
        found = cloud_events.structured(received.body)
    else:
        assert received.body == payloads.log(event)
        named = {name[3:]: unquote(value, errors="strict") for name, value in headers.items() if name[:3] == "ce-"}
        found = cloud_events.of_attributes(named, received.body)
    assert headers.get("traceparent", "") == event.trace.partition(" ")[0]
    cloud_events.assert_is(found, event)
