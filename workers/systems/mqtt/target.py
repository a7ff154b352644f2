"""MQTT 3.1, 3.1.1 and 5: each event is one message on the topic (reference §4.4).

Delivered means: with QoS 1 and 2, the broker has finished the handshake of the message (PUBACK, PUBCOMP). QoS 0 has no
handshake: there the broker has answered a packet sent after the message, so it has read the message, but it does not
report what it did with it.

| answer                                                          | outcome                                        |
|-----------------------------------------------------------------|------------------------------------------------|
| confirmed, in version 5 with a code below 128                   | Delivered                                      |
| packet too large, payload format invalid                        | Rejected                                       |
| not authorised, quota exceeded, topic name invalid              | Unavailable; Failed for the topic of a template |
| any other code from 128 on                                      | Failed                                         |
| connection closed by a broker that accepts a new one at once    | Failed for the oldest unconfirmed event, which |
|                                                                 | may be to blame; Unavailable for the others,   |
|                                                                 | and for all after a connection that was idle   |
| connection lost, no confirmation in time                        | Unavailable for sent, unconfirmed events       |

A paho client is never reused after a failure: it keeps unconfirmed messages and sends them again after reconnecting,
without our knowledge. The network is served within our calls, not by a thread: that takes half the CPU time.
"""

from collections.abc import Iterable, Sequence

from app.config.targets.mqtt import MqttSettings
from app.events.model import Event
from workers.delivery.outcomes import Unavailable
from workers.systems.mqtt.link import Lost, MqttLink
from workers.targets import tls
from workers.targets.base import TargetUnavailable
from workers.targets.link_target import LinkTarget
from workers.targets.payloads import waves
from workers.targets.tcp import Endpoint


class MqttTarget(LinkTarget[MqttLink]):
    """One broker, one connection; nothing is created."""

    def __init__(self, settings: MqttSettings) -> None:
        self._settings = settings
        super().__init__(f"MQTT broker at {settings.place.address}", (Lost, OSError))

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the broker."""
        context = tls.context_maker(self._settings)
        return [Endpoint(self._settings.place.address, context)]

    def _open_link(self) -> MqttLink:
        settings, place = self._settings, self._settings.place
        try:
            return MqttLink(settings, place, settings.version)
        except Lost as refused:
            # A broker of MQTT 3.1 refuses 3.1.1 by a code, or closes the connection. MinIO's library tries 3.1 then.
            if settings.version != "3.1.1" or not refused.dropped:
                raise
            try:
                return MqttLink(settings, place, "3.1")
            except (Lost, OSError):
                raise refused from None

    def _groups(self, events: Sequence[Event], window: int) -> Iterable[Iterable[int]]:
        # The broker accepts messages that it cannot refuse in order, so an object's next message need not wait.
        can_refuse = self._settings.version == "5" and self._settings.qos
        return waves(events) if can_refuse and window > 1 else [range(len(events))]

    def _lost(self, link: MqttLink, error: Exception, reason: str) -> Unavailable:
        self._drop(link)
        if isinstance(error, Lost) and error.dropped and not link.was_idle:
            try:
                self._connect()
            except TargetUnavailable as second:
                return Unavailable(f"{reason}; then {second.reason}")
            link.fail_oldest(reason)
        return Unavailable(reason)

    def _describe_error(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self._settings.timeout:g} s"
        return (error.strerror if isinstance(error, OSError) else "") or str(error)
