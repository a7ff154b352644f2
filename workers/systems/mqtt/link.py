"""One connection to an MQTT broker, and the broker's answers about the messages on it.

paho's client loses the broker's reason or leaks a socket at times. What fixes that uses internals of paho 2.1 and 2.2;
the contract suite verifies it with the answers of a real broker.
"""

import contextlib
import secrets
import select
import time
from collections.abc import Callable
from typing import Any, Literal

from paho.mqtt import client as paho
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, LogLevel, MessageState, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from app.config.errors import BadValue
from app.config.targets.mqtt import MqttAddress, MqttSettings
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected, Unavailable
from workers.targets import sockets, tcp, tls
from workers.targets.batch import Batch
from workers.targets.messages import LEAST_BYTES, MQTT, message_format
from workers.targets.sockets import MAX_ANSWER_BYTES, Deadline, LimitedSocket

MAX_PACKET_BYTES = 268_435_455  # of a packet without its fixed header, in any version
BATCH_MESSAGES = 32  # messages queued before they are written

# Codes that end a message (MQTT 5, §2.4).
_TOO_LARGE, _BAD_PAYLOAD, _SILENT = 0x95, 0x99, 0x8D
_ABOUT_ONE_MESSAGE = (_TOO_LARGE, _BAD_PAYLOAD)
_ABOUT_THE_TOPIC = (0x87, 0x90)
_REFUSALS = {0x87: "not authorised", 0x90: "topic name invalid", 0x97: "quota exceeded"}
_DESCRIPTIONS = _REFUSALS | {
    0x80: "unspecified error",
    0x83: "implementation specific error",
    0x91: "packet identifier in use",
    0x92: "packet identifier not found",
    _TOO_LARGE: "packet too large",
    _BAD_PAYLOAD: "payload format invalid",
}


class Lost(Exception):
    """The connection is no longer usable. `dropped`: the broker closed it without a reason, or because of a message."""

    def __init__(self, reason: str, *, dropped: bool = False) -> None:
        super().__init__(reason)
        self.dropped = dropped


class MqttLink:
    """A connection and the broker's answers about the events of the current call.

    Every method raises `Lost` or `OSError` when the connection is no longer usable.
    """

    def __init__(self, settings: MqttSettings, place: MqttAddress, version: str) -> None:
        self._batch = Batch(())
        self._is_used = False
        self.was_idle = False  # whether it served an earlier call, and nothing has been confirmed in this one
        self._settings = settings
        self._topic = settings.topic
        self._format = message_format(settings, MQTT)
        self._overhead = 2 + (2 if settings.qos else 0) + (settings.version == "5")
        self._largest = MAX_PACKET_BYTES
        # There are 65535 identifiers. Before version 5 a broker cannot announce how many messages with QoS 2 it tracks:
        # mosquitto closes the connection after 20.
        self._window = 20 if settings.qos == 2 and settings.version != "5" else 65_535
        self._unconfirmed: dict[int, int] = {}  # message identifier to index of its event, in the order of sending
        self._barrier = 0  # identifier of the packet whose answer confirms all messages sent with QoS 0
        self._connected = False
        self._lost_because = "the connection was lost"
        self._dropped = True
        self._poll = select.poll()
        self._client = make_client(settings, place, version, self._settle)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_unsubscribe = self._on_unsubscribe
        self._client.on_log = self._on_log
        try:
            host, port = place.address
            with Deadline(settings.timeout):  # paho reads the answer to a WebSocket's handshake byte by byte
                self._client.connect(host, port, settings.keep_alive)
            deadline = time.monotonic() + settings.timeout
            while not self._connected:
                self._turn(_left(deadline))
        except BaseException as error:
            self._client.hang_up()
            # A broker without MQTT 5 closes the connection, or answers with a code of 3.1.1.
            if version == "5" and isinstance(error, Lost) and (error.dropped or "protocol" in str(error).lower()):
                raise Lost(f"{error} (does the broker speak MQTT 5? if not, set version=3.1.1)") from error
            raise
        self._client.on_log = None
        self._used = time.monotonic()

    def begin(self, batch: Batch) -> None:
        """Begin a new call; every message of the previous one is confirmed, else the link would be gone."""
        self.was_idle, self._is_used = self._is_used, True
        self._batch = batch

    def send(self, index: int, window: int) -> None:
        """Publish an event, if it may be sent, as soon as the window has room for it."""
        self.gather(min(window, self._window) - 1)
        if not self._batch.begin([index]):
            return
        event = self._batch.events[index]
        try:
            topic = self._topic.of(event)
        except BadValue as error:
            self._batch.settle(index, Rejected(error.problem))
            return
        body = self._format.body(event).encode()
        properties = None
        if (event.trace or self._format.headers) and self._settings.version == "5":
            content_type = self._format.content_type if self._format.headers else ""
            properties = publish_properties(list(self._format.all_headers(event).items()), content_type)
        size = self._overhead + len(topic.encode()) + len(body)
        if properties is not None:
            size += len(properties.pack()) - 1  # without properties, their length byte is already part of every message
        if size + 1 + _length_of_length(size) > self._largest:
            self._batch.settle(index, Rejected(f"the message has {size} bytes, more than the broker accepts"))
            return
        sent = self._client.publish(topic, body, self._settings.qos, self._settings.retain, properties)
        if sent.rc is not MQTTErrorCode.MQTT_ERR_SUCCESS:
            raise Lost(paho.error_string(sent.rc))
        self._unconfirmed[sent.mid] = index
        if sent.mid % BATCH_MESSAGES == 0:
            self._turn(0)

    def gather(self, most: int) -> None:
        """Wait until at most that many events are unconfirmed.

        Each confirmation restarts the time limit, as long as the call has time.
        """
        deadline = time.monotonic() + self._settings.timeout
        while (waiting := len(self._unconfirmed)) > most:
            if not self._settings.qos and not self._barrier:
                # Unsubscribing from a topic without a subscription is the only request that every broker answers.
                result, mid = self._client.unsubscribe(self._topic)
                if mid is None:
                    raise Lost(paho.error_string(result))
                self._barrier = mid
            self._turn(_left(deadline))
            if len(self._unconfirmed) < waiting and self._batch.has_time():
                deadline = time.monotonic() + self._settings.timeout
        self._used = time.monotonic()

    def look(self) -> None:
        """Process the answers that have arrived, without waiting."""
        self._turn(0)

    def is_stale(self) -> bool:
        """Return whether it was idle for so long, without any packet, that the broker may have closed it."""
        keep_alive = self._client.keepalive
        return bool(keep_alive) and time.monotonic() - self._used >= keep_alive

    def fail_oldest(self, words: str) -> None:
        """Blame the oldest unconfirmed message: a broker may close the connection over a message without a reason."""
        if (index := self._batch.oldest_sent()) is not None:
            self._batch.settle(index, Failed(words))

    def close(self) -> None:
        """Disconnect and close the socket."""
        self._client.on_disconnect = None
        self._client.disconnect()
        self._client.loop_write()
        self.drop()

    def drop(self) -> None:
        """Close the socket."""
        self._client.hang_up()

    def _turn(self, patience: float) -> None:
        """Write queued packets and read what has arrived; wait for either for at most `patience` seconds."""
        client = self._client
        wire = client.socket()
        if wire is None:
            raise self._lost()
        self._poll.register(wire, select.POLLIN | (select.POLLOUT if client.want_write() else 0))
        unread = client.unread()
        if client.keepalive:
            patience = min(patience, client.keepalive / 2)  # otherwise nothing would check whether the broker is alive
        ready = dict(self._poll.poll(0 if unread else max(0, patience) * 1000)).get(wire.fileno(), 0)
        result = MQTTErrorCode.MQTT_ERR_SUCCESS
        # Read first: the reason that the broker sent before closing is lost when writing fails.
        if unread or ready & ~select.POLLOUT:
            result = client.loop_read()
        if ready & select.POLLOUT:
            result = result or client.loop_write()
        result = result or client.loop_misc()
        if result is MQTTErrorCode.MQTT_ERR_PROTOCOL and self._connected:
            raise Lost(client.problem() or "the broker sent what MQTT does not allow")
        if result or client.socket() is None:
            raise self._lost()

    def _lost(self) -> Lost:
        """Return the error for a connection that has ended."""
        if problem := self._client.problem():
            return Lost(problem, dropped=False)
        return Lost(self._lost_because, dropped=self._dropped)

    def _settle(self, mid: int, code: int, words: str) -> None:
        index = self._unconfirmed.pop(mid, None)
        if index is None:
            return
        self.was_idle = False
        self._batch.settle(index, outcome_of_code(code, words, of_template=self._topic.fixed is None))

    def _on_connect(self, _c: object, _u: object, _f: object, reason: ReasonCode, properties: Any) -> None:
        if reason.is_failure:
            self._lost_because = f"{reason}{_reason_string(properties)}"
            self._dropped = False
            return
        self._connected = True
        if properties is None:
            return
        if self._settings.qos:
            self._window = min(self._window, getattr(properties, "ReceiveMaximum", self._window))
        self._largest = getattr(properties, "MaximumPacketSize", self._largest)
        if self._largest < LEAST_BYTES:
            raise Lost(f"the broker says that it takes packets of up to {self._largest} bytes: no event is so small")
        if getattr(properties, "MaximumQoS", 2) < self._settings.qos:
            raise Lost(f"qos: the broker supports at most QoS {properties.MaximumQoS}")
        if self._settings.retain and not getattr(properties, "RetainAvailable", 1):
            raise Lost("retain: the broker does not support retained messages")

    def _on_disconnect(
        self, _c: object, _u: object, flags: paho.DisconnectFlags, reason: ReasonCode, properties: Any
    ) -> None:
        if flags.is_disconnect_packet_from_server:
            self._lost_because = f"{reason}{_reason_string(properties)}"
            self._dropped = reason.value in _ABOUT_ONE_MESSAGE
        elif reason == _SILENT:
            self._lost_because = f"no answer within the keep-alive interval of {self._client.keepalive} s"
            self._dropped = False

    def _on_unsubscribe(self, _c: object, _u: object, mid: int, _r: object, _p: object) -> None:
        if mid == self._barrier:
            self._barrier = 0
            for sent in list(self._unconfirmed):
                self._settle(sent, 0, "")

    def _on_log(self, _c: object, _u: object, level: int, words: str) -> None:
        if level == LogLevel.MQTT_LOG_ERR:
            self._lost_because = words


def outcome_of_code(code: int, details: str = "", *, of_template: bool = False) -> Outcome:
    """Return the outcome for the code that ends a message (MQTT 5, §2.4); `details` are the broker's reason.

    With `of_template` the topic is this event's: that it is refused says nothing of the others.
    """
    if code < 0x80:
        return DELIVERED
    described = f"{_DESCRIPTIONS.get(code, 'unknown reason')} (0x{code:02X})"
    reason = f"the broker refused it: {described}: {details}" if details else f"the broker refused it: {described}"
    if code in _ABOUT_ONE_MESSAGE:
        return Rejected(reason)
    if code in _REFUSALS and not (of_template and code in _ABOUT_THE_TOPIC):
        return Unavailable(reason)
    return Failed(reason)


def _reason_string(properties: Any) -> str:
    text = getattr(properties, "ReasonString", "")
    return f": {text}" if text else ""


def _left(deadline: float) -> float:
    """Return the seconds until then. Raises `TimeoutError` if none are left."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _length_of_length(size: int) -> int:
    return 1 if size < 128 else 2 if size < 16_384 else 3 if size < 2_097_152 else 4


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
        sockets.watch(self._wire.fileno())
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
