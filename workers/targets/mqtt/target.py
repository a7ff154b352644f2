"""MQTT 3.1.1 and 5: each event is one message on the topic (reference §4.4).

Delivered means: with QoS 1 and 2, the broker has finished the handshake of the message (PUBACK, PUBCOMP). QoS 0 has no
handshake: there the broker has answered a packet sent after the message, so it has read the message, but it does not
report what it did with it.

| answer                                                          | outcome                                        |
|-----------------------------------------------------------------|------------------------------------------------|
| confirmed, in version 5 with a code below 128                   | Delivered                                      |
| packet too large, payload format invalid                        | Rejected                                       |
| not authorised, quota exceeded, topic name invalid              | Unavailable                                    |
| any other code from 128 on                                      | Failed                                         |
| connection closed by a broker that accepts a new one at once    | Failed for the oldest unconfirmed event, which |
|                                                                 | may be to blame; Unavailable for the others    |
| connection lost, no confirmation in time                        | Unavailable for sent, unconfirmed events       |

A paho client is never reused after a failure: it keeps unconfirmed messages and sends them again after reconnecting,
without our knowledge. The network is served within our calls, not by a thread: that takes half the CPU time.
"""

from collections.abc import Sequence

from app.config.targets.mqtt import MqttSettings
from app.events.model import Event
from workers.delivery.outcomes import Outcome, Unavailable
from workers.targets.base import NO_LEASE, LeaseCheck, TargetUnavailable
from workers.targets.batch import Batch
from workers.targets.mqtt.link import Link, Lost
from workers.targets.payloads import waves


class MqttTarget:
    """One broker, one connection."""

    def __init__(self, settings: MqttSettings) -> None:
        self._settings = settings
        self._where = f"MQTT broker at {settings.place.address}"
        self._link: Link | None = None

    def open(self) -> None:
        """Connect and log in; nothing is created."""
        self._connect()

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> Sequence[Outcome]:
        """Keep up to `window` messages unconfirmed; send none after the topic is refused or the link is lost."""
        link = self._awake()
        batch = Batch(events, lease)
        link.begin(batch)
        # The broker accepts messages that it cannot refuse in order, so an object's next message need not wait.
        together = window == 1 or self._settings.version != "5" or not self._settings.qos
        try:
            for group in [range(len(events))] if together else waves(events):
                for index in group:
                    link.send(index, window)
                link.gather(0)
        except (Lost, OSError) as error:
            batch.lose(self._lost(link, error))
        except BaseException:
            self._link = None
            link.drop()
            raise
        return batch.outcomes()

    def close(self) -> None:
        """Close the connection."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _connect(self) -> Link:
        self.close()
        try:
            link = Link(self._settings, self._settings.place)
        except (Lost, OSError) as error:
            raise TargetUnavailable(f"{self._where}: {self._words(error)}") from error
        self._link = link
        return link

    def _awake(self) -> Link:
        """Return the link if it is still usable, else a new one: the broker may have closed it or timed it out."""
        link = self._link
        if link is None or link.is_stale():
            return self._connect()
        try:
            link.look()
        except (Lost, OSError):
            link.drop()
            return self._connect()
        return link

    def _lost(self, link: Link, error: Lost | OSError) -> Unavailable:
        """Return the outcome of the events that were sent and are neither confirmed nor refused."""
        self._link = None
        link.drop()
        words = f"{self._where}: {self._words(error)}"
        if isinstance(error, Lost) and error.dropped:
            try:
                self._connect()
            except TargetUnavailable as second:
                return Unavailable(f"{words}; then {second.reason}")
            link.fail_oldest(words)
        return Unavailable(words)

    def _words(self, error: Lost | OSError) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self._settings.timeout:g} s"
        return (error.strerror if isinstance(error, OSError) else "") or str(error)
