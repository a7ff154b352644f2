"""Configure and extend kafka-python's clients, and decide what their errors mean.

The library's producer reports every connection problem as a timeout, and has no setting for compression levels. Both
are added through the only extension point that it has, the class of its client (`kafka_client`). The table of outcomes
is in `workers.systems.kafka.target`.
"""

import gzip
import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from kafka import codec
from kafka import errors as kafka_errors
from kafka.errors import InvalidRequiredAcksError, KafkaConnectionError, KafkaError, KafkaTimeoutError, for_code
from kafka.net import inet
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl import register_sasl_mechanism
from kafka.net.sasl.scram import SaslMechanismScram
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.record import default_records, legacy_records

from app.config.sources.kafka import KafkaSourceSettings
from app.config.targets.kafka import KafkaConnection, KafkaSettings
from workers.delivery.outcomes import Failed, Outcome, Rejected, Unavailable
from workers.targets import tcp, tls

CLIENT_NAME = "Bucketwire"
BATCH_BYTES = 1_000_000  # a broker accepts 1,048,588 by default

_MECHANISMS = {"plain": "PLAIN", "sha256": "SCRAM-SHA-256", "sha512": "SCRAM-SHA-512"}
_MAX_REQUEST_BYTES = 16 * 2**20  # larger ones are not even sent; a broker's limit is lower, and its error clearer


def producer_config(chosen: KafkaSettings) -> dict[str, Any]:
    """Return the options of a `KafkaProducer`. Raises `TargetUnavailable` for unreadable certificate files."""
    milliseconds = round(chosen.timeout * 1000)
    return connection_config(chosen) | {
        "acks": "all",
        "enable_idempotence": chosen.is_idempotent,
        # Without idempotence only this preserves the order of the halves of a batch that was too large.
        "max_in_flight_requests_per_connection": 5 if chosen.is_idempotent else 1,
        "compression_type": None if chosen.compression_codec == "none" else chosen.compression_codec,
        # A batch is sent when its round is complete, not while it is being filled.
        "linger_ms": milliseconds // 2,
        "delivery_timeout_ms": milliseconds + milliseconds // 2,
        "max_block_ms": milliseconds,
        "batch_size": BATCH_BYTES,
        "max_request_size": _MAX_REQUEST_BYTES,
    }


def connection_config(chosen: KafkaSettings | KafkaSourceSettings) -> dict[str, Any]:
    """Return the options of any client. Raises `TargetUnavailable` for unreadable certificate files."""
    config: dict[str, Any] = {
        "bootstrap_servers": [str(broker) for broker in chosen.bootstrap],
        "client_id": CLIENT_NAME,
        "api_version": chosen.api_version,
        "request_timeout_ms": round(chosen.timeout * 1000),
        "reconnect_backoff_max_ms": 500,  # the default of 30 s would prolong every outage by as much
        "metrics_enabled": False,
        "socket_options": [
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        ],
        "security_protocol": ("SASL_" if chosen.sasl else "") + ("SSL" if chosen.tls else "PLAINTEXT"),
    }
    if chosen.sasl:
        config["sasl_mechanism"] = _MECHANISMS[chosen.sasl_mechanism]
        config["sasl_plain_username"] = chosen.sasl_username
        config["sasl_plain_password"] = chosen.sasl_password
    if chosen.tls:
        config["ssl_context"] = tls_context(chosen)
    return config


def tls_context(chosen: KafkaConnection) -> ssl.SSLContext:
    """Return the TLS context. Raises `TargetUnavailable` for an unusable file."""
    return tls.context(
        chosen,
        chosen.tls_ca,
        skip_verify=chosen.tls_skip_verify,
        client_cert=chosen.client_tls_cert,
        client_key=chosen.client_tls_key,
        names=("tls_ca", "client_tls_cert", "client_tls_key"),
    )


# Every failure is reported once, in an outcome; the library would log a line for each of its own retries.
logging.getLogger("kafka").setLevel(logging.CRITICAL)

_READ, _MAX_AT_ONCE = 1 << 16, 1 << 20  # bytes
_GZIP_LEVEL = 6  # as zlib, Java and Go; the library's default 9 is several times as slow for 5 % less
_producing = threading.local()  # settings of the producer's own thread, which compresses batches


class Client(KafkaNetClient):  # type: ignore[misc]  # kafka-python ships no types
    """The client of one producer. `last_error` is the most recent error; set it to None to clear it."""

    def __init__(self, *, level: int, patience: float, **config: Any) -> None:
        milliseconds = patience * 1000
        config["socket_connection_setup_timeout_ms"] = milliseconds
        config["socket_connection_setup_timeout_max_ms"] = milliseconds
        self._level = level
        self._patience = patience
        self.last_error: BaseException | None = None
        net = NetworkSelector(**config)
        net.refuses_link_local = tcp.refuses_link_local()  # its producer's thread also connects between two calls
        self._connections = _Connections(net, self._note, **config)
        # The library drops this option on its way, and brokers would create a topic again that somebody has deleted.
        self._connections.cluster.config["allow_auto_create_topics"] = config.get("allow_auto_create_topics", True)
        super().__init__(net, self._connections)

    def begin(self) -> None:
        """Connect to the cluster. Raises `KafkaError` with the reason of the last broker that was tried."""
        # The library would try all brokers again until its time is over, and wait forever for a TLS handshake.
        deadline = time.monotonic() + self._patience
        bootstrapped = self._connections.bootstrap_async(self._patience * 1000)
        while not bootstrapped.is_done and not self._connections.all_failed and time.monotonic() < deadline:
            self.poll(timeout_ms=50, future=bootstrapped)
        if bootstrapped.succeeded():
            self.last_error = None
            return
        if bootstrapped.failed() and not isinstance(bootstrapped.exception, KafkaTimeoutError):
            raise bootstrapped.exception
        raise self.last_error or KafkaTimeoutError(f"no answer within {self._patience:g} s")

    def ask(self, request: Any, seconds: float, broker: int | None = None) -> Any:
        """Return the answer of this broker, or of any. Raises `KafkaError`."""

        async def answer() -> Any:
            return await self._connections.wait_for(self._connections.send(request, node_id=broker), seconds * 1000)

        return self._connections.run(answer)

    def is_ready(self, node_id: Any, **options: Any) -> bool:
        """Override the library's; the producer's thread calls it just before it takes a batch and compresses it."""
        _producing.level = self._level
        return bool(super().is_ready(node_id, **options))

    def _note(self, last_error: BaseException) -> None:
        self.last_error = last_error


class _Connections(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python ships no types
    """Connections that report why they failed or were lost, and the errors in brokers' answers."""

    def __init__(self, net: Any, note: Callable[[BaseException], None], **config: Any) -> None:
        self._note = note
        self._known: dict[Any, Any] = {}
        self._failed: set[Any] = set()
        super().__init__(net, **config)
        # The library picks a random broker each time, and may pick an unreachable one until its time is over.
        self._listed = self.cluster.bootstrap_brokers
        self.cluster.bootstrap_brokers = self._untried

    @property
    def all_failed(self) -> bool:
        """Whether every bootstrap broker has failed."""
        return self._failed.issuperset(broker.node_id for broker in self._listed())

    def _untried(self) -> list[Any]:
        brokers = self._listed()
        return [broker for broker in brokers if broker.node_id not in self._failed] or brokers

    def get_connection(self, node_id: Any, *positional: Any, **options: Any) -> Any:
        connection = super().get_connection(node_id, *positional, **options)
        if self._known.get(node_id) is not connection:
            self._known[node_id] = connection
            # A broker that the settings do not name is reached by the address that the cluster advertises.
            node = None if self.cluster.is_bootstrap(node_id) else self.cluster.broker_metadata(node_id)

            def note(error: Any) -> None:
                if node is not None and isinstance(error, KafkaConnectionError):
                    error.advertised = f"{node.host}:{node.port}"
                self._note(error)

            connection.init_future.add_errback(note)
            connection.init_future.add_errback(lambda _: self._failed.add(node_id))
            connection.close_future.add_errback(note)
        return connection

    def send(self, request: Any, *positional: Any, **options: Any) -> Any:
        return super().send(request, *positional, **options).add_callback(self._read)

    def _read(self, answer: Any) -> None:
        """Report errors of an answer: for the whole, per topic (metadata), or per partition of a topic (produce).

        A batch without an offset is in no log; the library would take it for delivered.
        """
        produced = [part for topic in getattr(answer, "responses", ()) for part in topic.partition_responses]
        for part in produced:
            if not part.error_code and part.base_offset < 0:
                part.error_code = InvalidRequiredAcksError.errno
                part.error_message = f"the broker confirms messages at offset {part.base_offset}, which is none"
        for part in (answer, *getattr(answer, "topics", ()), *produced):
            if code := getattr(part, "error_code", 0):
                self._note(for_code(code)(getattr(part, "error_message", None)))


def missing_package(name: str) -> str:
    """Return the package that a codec needs and that is not installed, else an empty text."""
    needed = {"snappy": ("python-snappy", codec.snappy), "lz4": ("lz4", codec.lz4), "zstd": ("zstandard", codec.zstd)}
    package, has_codec = needed.get(name, ("", codec))
    return "" if has_codec else package


def _gzip(payload: bytes) -> bytes:
    return gzip.compress(payload, getattr(_producing, "level", 0) or _GZIP_LEVEL, mtime=0)


def _lz4(payload: bytes) -> Any:
    return codec.lz4_encode(payload, compression_level=getattr(_producing, "level", 0))


def _zstd(payload: bytes) -> Any:
    return codec.zstd.ZstdCompressor(level=getattr(_producing, "level", 0) or 3).compress(payload)


def _closing(step: Callable[..., Any], close: Callable[[Any, Any], None]) -> Callable[..., Any]:
    """Make a connection step close its connection if it fails; the library leaves that to the garbage collector."""

    async def tried(self: Any, *positional: Any, **options: Any) -> Any:
        try:
            return await step(self, *positional, **options)
        except BaseException:
            close(self, positional)
            raise

    return tried


class _Socket(KafkaNetSocket):  # type: ignore[misc]  # kafka-python ships no types
    """Connects to the addresses of a name as `workers.targets.tcp`; the library gives all its time to the first."""

    SCHEMES = ()
    _left = 1
    _found: Sequence[Any] = ()

    def dns_lookup(self, *place: Any, **options: Any) -> Any:
        self._found = tcp.ordered(super().dns_lookup(*place, **options))
        self._left = len(self._found)
        return self._found

    async def connect(self, net: Any, addrinfo: Any, socket_options: Any = (), timeout_at: float | None = None) -> Any:
        left, self._left = self._left, self._left - 1
        if timeout_at is not None and left > 1:
            timeout_at = time.monotonic() + tcp.share(timeout_at, left)
        try:
            if getattr(net, "refuses_link_local", False):  # the library shows no error's text but its own
                tcp.not_link_local(addrinfo[4][0])
            made = await super().connect(net, addrinfo, socket_options, timeout_at=timeout_at)
        except tcp.LinkLocalAddress as error:
            raise KafkaConnectionError(str(error)) from error
        except KafkaTimeoutError as error:
            if left <= 1:
                raise
            raise KafkaConnectionError("no connection in time") from error
        tcp.made(made.fileno(), tcp.places([addrinfo])[0], tcp.places(self._found))
        return made


def _receive(self: Any) -> tuple[bytes, KafkaConnectionError | None]:
    """Receive what is there, a mebibyte at most, in place of the library's, which reads as long as something comes.

    A broker that sends faster than this process reads would fill its memory with an answer that nobody has looked at.
    """
    received, pending = bytearray(), getattr(self._sock, "pending", int)  # bytes that TLS has already read
    try:
        while len(received) < _MAX_AT_ONCE or pending():
            data = self._sock.recv(_READ)
            if not data:
                return bytes(received), KafkaConnectionError("socket disconnected")
            received += data
    except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        pass
    except OSError as error:
        return bytes(received), KafkaConnectionError(error)
    return bytes(received), None


class _Scram(SaslMechanismScram):  # type: ignore[misc]  # kafka-python ships no types
    """SCRAM with a user's name as RFC 5802 has it (5.1): with a `,` or `=` the library's message cannot be read."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self._scram_client.user = self._scram_client.user.replace(b"=", b"=3D").replace(b",", b"=2C")


for _mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
    register_sasl_mechanism(_mechanism, _Scram, overwrite=True)
inet.KafkaNetSocket = _Socket
KafkaNetSocket.sock_connect = _closing(KafkaNetSocket.sock_connect, lambda _, given: given[1].close())
KafkaTCPTransport._sock_recv = KafkaSSLTransport._sock_recv = _receive
KafkaSSLTransport.handshake = _closing(KafkaSSLTransport.handshake, lambda transport, _: transport.abort())
for _module in (default_records, legacy_records):
    _module.gzip_encode = _gzip
    _module.lz4_encode = _lz4
default_records.zstd_encode = _zstd


TOO_LARGE = (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError)
_HINTS = {
    kafka_errors.UnknownTopicOrPartitionError: "the topic does not exist and the broker does not create it; create it",
    kafka_errors.InvalidReplicationFactorError: "the broker has too few nodes for the topic's default replicas",
    kafka_errors.TopicAuthorizationFailedError: "the user needs Describe and Write on the topic",
    kafka_errors.ClusterAuthorizationFailedError: "the user needs IdempotentWrite on the cluster; or idempotent=off",
    kafka_errors.InvalidReceiveError: "does it need tls=on?",  # a TLS alert, read as the length of an answer
    kafka_errors.InvalidRecordError: "does the topic need a schema, which a message has not?",
    kafka_errors.InvalidTimestampError: "compare the clock of this machine with the broker's",
}
_NUMBERED = re.compile(r"\[Error (-?[0-9]+)\]")


def outcome_of_error(error: BaseException, reason: str, size: int) -> Outcome:
    """Return the outcome of a message with `size` bytes of key and value; `error` is `unwrapped`."""
    if isinstance(error, TOO_LARGE):
        return Rejected(f"{reason} (it has {size} bytes)")
    if _is_innocent(error) or type(error) in (kafka_errors.UnknownError, kafka_errors.CorruptRecordError):
        return Failed(reason)
    return Unavailable(reason)


def unwrapped(error: BaseException) -> BaseException:
    """Return the broker's error if the library has only its number and name, in the text of a bare `KafkaError`.

    The library does this with the broker's answer when the producer requests its id, before it sends anything.
    """
    match = _NUMBERED.search(str(error)) if type(error) is KafkaError else None
    return for_code(int(match[1]))() if match else error


def describe_error(error: BaseException, last_error: BaseException | None, *, sasl: bool) -> str:
    """Return an error as text, with a hint at its cause; `last_error` explains a timeout."""
    if isinstance(error, KafkaTimeoutError) and last_error is not None:
        error = last_error
    text = str(error.args[0]) if error.args and error.args[0] else ""
    text = f"{type(error).__name__}: {text or getattr(error, 'description', None) or 'no reason given'}"
    hint = next((hint for kind, hint in _HINTS.items() if isinstance(error, kind)), "")
    if text.endswith("socket disconnected"):
        hint = "brokers close the connection after a wrong login" if sasl else "does it need tls=on or sasl=on?"
    if place := getattr(error, "advertised", ""):
        hint = f"at {place}, the address that the cluster advertises; is advertised.listeners right for this machine?"
    return text + (f" ({hint})" if hint else "")


def _is_innocent(error: BaseException) -> bool:
    """Return whether a message was refused only because the broker rejected another message of its batch.

    Every other bare `KafkaError` is about the producer, not about a message.
    """
    return type(error) is KafkaError and "part of a batch" in str(error)
