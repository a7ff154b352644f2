"""A connection over which events are published: which subjects, and which sizes, the server refuses."""

import re
from collections.abc import Callable

from app.config.fields.addresses import HostPort
from app.config.targets.nats import NatsSettings
from app.events.model import Event
from workers.delivery.outcomes import Failed, Rejected
from workers.systems.nats.connection import Connection

_NOT_ALLOWED = re.compile(r'permissions violation for publish to "([^"]*)"')  # nats-py makes it lower case


class TargetConnection(Connection):
    """The connection of a target."""

    settings: NatsSettings

    def __init__(self, settings: NatsSettings, server: HostPort, is_encrypted: Callable[[], bool]) -> None:
        super().__init__(settings, server, is_encrypted)
        self._not_allowed: set[str] = set()  # subjects of a template that the user may not publish to, in lower case

    def forget_refusals(self) -> None:
        """Forget which subjects were refused: the next messages may be allowed."""
        self._not_allowed.clear()

    def refused(self, event: Event) -> Failed | None:
        """Return the outcome of a message that was sent if the user may not publish to its subject, else None.

        Only with a template, where that is no reason to do without the other subjects.
        """
        if not self._not_allowed or (subject := self.settings.subject.of(event)).lower() not in self._not_allowed:
            return None
        return Failed(f"{self.where}: the user may not publish to {subject!r}")

    def too_large(self, size: int) -> Rejected:
        """Return the outcome of a message of this size: the server would close the connection over it."""
        return Rejected(f"{self.where}: the message has {size} bytes, max_payload is {self.client.max_payload}")

    def _is_of_one_subject(self, reason: str) -> bool:
        chosen = self.settings
        refused = _NOT_ALLOWED.search(reason) if chosen.subject.fixed is None and not chosen.streaming else None
        if refused:
            self._not_allowed.add(refused[1])
        return bool(refused)
