"""paho's MQTT client, with fixes where it loses the broker's reason or leaks a socket.

It uses internals of paho 2.1 and 2.2; the contract suite verifies it with the answers of a real broker.
"""

import contextlib
import secrets
from collections.abc import Callable
from typing import Any, Literal

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MessageState, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from app.config.targets.mqtt import MqttAddress, MqttSettings
from workers.targets import socket_deadline, tcp, tls
from workers.targets.answer_limit import MAX_ANSWER_BYTES, LimitedSocket

# The states in which a message waits for each confirmation; a PUBCOMP answers our PUBREL, which follows a PUBREC.
_AWAITED = {
    "PUBACK": (MessageState.MQTT_MS_WAIT_FOR_PUBACK,),
    "PUBREC": (MessageState.MQTT_MS_WAIT_FOR_PUBREC, MessageState.MQTT_MS_WAIT_FOR_PUBCOMP),
    "PUBCOMP": (MessageState.MQTT_MS_WAIT_FOR_PUBCOMP,),
}


class MqttClient(Client):
    """Calls `settled(message identifier, code, the broker's reason)` when a message with QoS 1 or 2 is finished.

    paho treats a PUBACK with an unexpected code (mosquitto's 0x95, packet too large) as the end of the connection,
    ignores the code of a PUBREC, and leaves its socket open when TLS or a WebSocket is refused.
    """

    def __init__(self, settled: Callable[[int, int, str], None], **options: Any) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, **options)
        self._settled = settled
        self._wire: Any = None
        self._unexpected = ""

    def hang_up(self) -> None:
        """Close the socket, in any state of the connection."""
        self._sock_close()
        if self._wire is not None:
            self._wire.close()

    def problem(self) -> str:
        """Return what is wrong with what the broker has sent; empty if nothing is."""
        return str((self._wire and self._wire.problem) or self._unexpected)

    def unread(self) -> bool:
        """Return whether TLS has buffered bytes, which polling the socket does not show."""
        return bool(getattr(self.socket(), "pending", int)())

    def _get_proxy(self) -> None:
        """Return none: paho would take `mqtt_proxy` from the environment, if the package for SOCKS is installed."""

    def _create_socket_connection(self) -> Any:
        # Without TCP_NODELAY the system delays a small packet behind an unacknowledged one for 40 ms.
        made = tcp.connect(self._host, self._port, self._connect_timeout, tcp.OPTIONS)
        self._wire = LimitedSocket(made, MAX_ANSWER_BYTES)
        socket_deadline.watch(self._wire.fileno())
        return self._wire

    def _ssl_wrap_socket(self, tcp_sock: Any) -> Any:
        context: Any = self._ssl_context
        self._wire = LimitedSocket(context.wrap_socket(tcp_sock.socket, server_hostname=self._host), MAX_ANSWER_BYTES)
        return self._wire

    def _handle_pubackcomp(self, cmd: Literal["PUBACK", "PUBCOMP"]) -> MQTTErrorCode:
        if not self._is_awaited(cmd):
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        self._end(PacketTypes.PUBACK if cmd == "PUBACK" else PacketTypes.PUBCOMP)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _handle_pubrec(self) -> MQTTErrorCode:
        if not self._is_awaited("PUBREC"):
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        packet = self._in_packet["packet"]
        if len(packet) > 2 and packet[2] >= 0x80:
            self._end(PacketTypes.PUBREC)
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        return super()._handle_pubrec()

    def _is_awaited(self, cmd: Literal["PUBACK", "PUBREC", "PUBCOMP"]) -> bool:
        """Return whether the message that the packet names waits for one of this kind; note it if it does not."""
        packet = self._in_packet["packet"]
        message = self._out_messages.get(int.from_bytes(packet[:2], "big"))
        if len(packet) >= 2 and (message is None or message.state in _AWAITED[cmd]):
            return True
        self._unexpected = f"the broker sent a {cmd} that confirms no message of this quality of service"
        return False

    def _end(self, kind: int) -> None:
        """Report the message of the packet as finished, successful or not."""
        packet = self._in_packet["packet"]
        mid, code, words = int.from_bytes(packet[:2], "big"), packet[2] if len(packet) > 2 else 0, ""
        if self._out_messages.pop(mid, None) is None:
            return
        if code >= 0x80 and len(packet) > 3:
            properties: Any = Properties(kind)  # type: ignore[no-untyped-call]  # paho leaves it untyped
            with contextlib.suppress(Exception):  # paho raises any for what is malformed; the code says enough
                properties.unpack(bytes(packet[3:]))
                words = str(getattr(properties, "ReasonString", ""))
        self._settled(mid, code, words)


_VERSIONS = {"3.1": MQTTProtocolVersion.MQTTv31, "3.1.1": MQTTProtocolVersion.MQTTv311, "5": MQTTProtocolVersion.MQTTv5}


def make_client(
    settings: MqttSettings, place: MqttAddress, version: str, settled: Callable[[int, int, str], None]
) -> MqttClient:
    """Create an unconnected client with these settings, except for the protocol's version.

    Raises `TargetUnavailable` for an unusable certificate.
    """
    client = MqttClient(
        settled,
        # 22 letters and digits, which every broker must accept; unique per connection, because a broker closes the
        # older one of two connections with the same id.
        client_id=f"bucketwire{secrets.token_hex(6)}",
        clean_session=None if version == "5" else True,
        protocol=_VERSIONS[version],
        transport="websockets" if place.path else "tcp",
        reconnect_on_failure=False,
    )
    client.connect_timeout = settings.timeout
    # This module limits the window; paho's own limit would scan all messages at each confirmation.
    client.max_inflight_messages_set(0)
    # With this callback set, paho lets the caller decide when to write: many messages at a time.
    client.on_socket_register_write = _wait_for_the_turn
    if place.user:
        client.username_pw_set(place.user, place.password or None)
    if place.path:
        client.ws_set_options(place.path)
    if place.tls:
        client.tls_set_context(tls.context_of(settings))
    return client


def publish_properties(user: list[tuple[str, str]], content_type: str = "") -> Any:
    """Return the properties of a message (version 5): these user properties, and the content type if there is one."""
    properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho leaves it untyped
    if content_type:
        properties.ContentType = content_type
    if user:
        properties.UserProperty = user
    return properties


def _wait_for_the_turn(*_: object) -> None:
    """Do nothing: the code that serves the connection checks `want_write`."""
