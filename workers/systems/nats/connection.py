"""One connection to a NATS server by nats-py, with what that client leaves to its user (reference libraries §1.1).

This module works around defects of nats-py 2.16, each shown by a test of `tests/contract/test_nats.py`, or the last one
of `test_jetstream_source.py`:

* `flush` writes its PING before the buffered data of `publish`, so that its PONG confirms nothing.
* It continues without TLS, and sends the password, if the server does not ask for TLS.
* A call that waits for an answer does not learn that the connection is lost.
* It reads a credentials file without a JWT forever.
* A message whose subject or headers are no UTF-8, or whose subject has a space beyond a blank and a tab, ends the
  connection, whoever sent it.

The login is by token, user and password, NKEY seed or credentials file.

The client runs in an `EventLoopThread`, because it answers the server's PING between two calls only while its loop
runs; the server closes a connection that does not answer.
"""

import asyncio
import base64
import math
import os
import re
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import nkeys  # type: ignore[import-untyped]  # it ships no types
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.protocol import parser

from app.config.fields.addresses import HostPort
from app.config.sources.jetstream import JetstreamSourceSettings
from app.config.targets.nats import NatsConnection, NatsSettings
from app.events.model import Event
from workers.delivery.outcomes import Failed, Rejected
from workers.targets import tcp, tls
from workers.targets.base import TargetUnavailable
from workers.targets.messages import LEAST_BYTES
from workers.targets.sockets import MAX_MESSAGE_BYTES, AnswerTooLong

T = TypeVar("T")

CLIENT_NAME = "Bucketwire"

# More than the largest message (64 MB): `publish` never waits for buffer space, as this package limits pending bytes.
_MAX_PENDING_BYTES = 128 * 1024 * 1024
_PING_SECONDS = 120
_MAX_LINE_BYTES = 1 << 20  # servers take 4 KiB, and their description of themselves has some more


# As the server reads such lines itself; with those of nats-py a word ends at any space.
parser.MSG_RE = re.compile(rb"\AMSG[ \t]+([^ \t\r\n]+)[ \t]+(\d+)[ \t]+(([^ \t\r\n]+)[ \t]+)?(\d+)\r\n")
parser.HMSG_RE = re.compile(rb"\AHMSG[ \t]+([^ \t\r\n]+)[ \t]+(\d+)[ \t]+(([^ \t\r\n]+)[ \t]+)?(\d+)[ \t]+(\d+)\r\n")

_NOT_ALLOWED = re.compile(r'permissions violation for publish to "([^"]*)"')  # nats-py makes it lower case


class _Parser(parser.Parser):
    """Reads messages and lines up to a limit."""

    async def parse(self, data: bytes = b"") -> None:
        await super().parse(data)
        if self.needed > MAX_MESSAGE_BYTES and self.state == parser.AWAITING_MSG_PAYLOAD:
            raise AnswerTooLong(MAX_MESSAGE_BYTES, self.needed)
        if len(self.buf) > _MAX_LINE_BYTES and self.state == parser.AWAITING_CONTROL_LINE:
            raise AnswerTooLong(_MAX_LINE_BYTES)


class _Client(Client):
    """A client that reads whatever a server passes on: a subject is any bytes, and so are headers."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = _Parser(self)

    def _build_message(self, sid: int, subject: bytes, *rest: Any) -> Any:
        return super()._build_message(sid, subject.decode(errors="replace").encode(), *rest)

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        if not headers:
            return None
        first, *lines = headers.decode(errors="replace").split("\r\n")
        _, _, status = first.partition(" ")
        code, _, description = status.partition(" ")
        parsed = {"Status": code, "Description": description} if code else {}
        for line in lines:
            name, colon, value = line.partition(":")
            if colon:
                parsed[name.strip()] = value.strip()
        return parsed


class Connection:
    """A connection that is open from `connect` until it is lost; `problem` returns the reason."""

    def __init__(
        self, settings: NatsSettings | JetstreamSourceSettings, server: HostPort, is_encrypted: Callable[[], bool]
    ) -> None:
        self.settings = settings
        self.where = f"NATS at {server}"
        self._server = server
        self.client = _Client()
        self.news = asyncio.Event()  # an answer arrived, or the connection is lost
        self._is_encrypted = is_encrypted
        self._refusal = ""  # the server's error about one of our messages
        self._connecting = True
        self._patience: asyncio.Timeout | None = None  # of the call that waits for an answer

    async def connect(self) -> None:
        """Connect and log in. Raises `TargetUnavailable`."""
        chosen = self.settings
        context = tls_context(chosen)
        try:
            async with asyncio.timeout(chosen.timeout):
                await self.client.connect(
                    servers=f"nats://{self._server}",
                    name=CLIENT_NAME,
                    error_cb=self._complained,
                    closed_cb=self._closed,
                    allow_reconnect=False,
                    connect_timeout=math.ceil(chosen.timeout),
                    ping_interval=math.ceil(chosen.ping_interval) or _PING_SECONDS,
                    pending_size=_MAX_PENDING_BYTES,
                    tls=context,
                    tls_handshake_first=chosen.tls_handshake_first,
                    **login_options(chosen, self._secret),
                )
        except (NatsError, OSError, TimeoutError, ValueError) as error:
            raise TargetUnavailable(f"{self.where}: {self._describe_error(error)}") from error
        except (AttributeError, TypeError, LookupError) as error:
            raise TargetUnavailable(f"{self.where}: what the server says of itself cannot be read") from error
        self._connecting = False
        self._insist_on_tls()
        if not self.client.is_connected:  # nats-py treats a closed connection as an answer to its login
            raise TargetUnavailable(f"{self.where}: the server closed the connection during the login")
        most: object = self.client.max_payload
        if not isinstance(most, int | float) or most < LEAST_BYTES:
            raise TargetUnavailable(f"{self.where}: the server says max_payload = {most!r:.80}: no event is so small")

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.client.is_closed

    @property
    def has_headers(self) -> bool:
        """Whether the server supports headers: versions before 2.2 do not."""
        return bool(self.client._server_info.get("headers"))

    def problem(self) -> TargetUnavailable | None:
        """Return why nothing more can be sent: the connection is lost, or the server refused a message; else None."""
        if self.is_lost:
            error = self.client.last_error
            return TargetUnavailable(
                f"{self.where}: connection lost" + (f": {self._describe_error(error)}" if error else "")
            )
        return TargetUnavailable(f"{self.where}: {self._refusal}") if self._refusal else None

    async def answered(self, answer: Awaitable[T]) -> T:
        """Return the answer. Raises `TargetUnavailable` when the connection is lost meanwhile, or the time is over."""
        try:
            async with asyncio.timeout(self.settings.timeout) as self._patience:
                return await answer
        except TimeoutError as error:
            raise self.problem() or self.no_answer() from error
        except NatsError as error:
            raise self.failed(error) from error
        finally:
            self._patience = None

    async def ask(self, subject: str, question: bytes, nobody: str) -> bytes:
        """Return the answer to a request. Raises `TargetUnavailable`, with `nobody` as its reason if nobody listens."""
        return await self.answered(self._request(subject, question, nobody))

    async def confirm(self) -> None:
        """Return when the server has read everything published so far, by the answer to a PING after it.

        Raises `TargetUnavailable`, also if the server reported an error about these messages.
        """
        await self.answered(self._flush())
        if problem := self.problem():
            raise problem

    async def wait_for_news(self) -> None:
        """Wait for `news`. Raises `TargetUnavailable` if the connection is lost or refused, or the time is over."""
        await self.answered(self.news.wait())
        if problem := self.problem():
            raise problem

    def no_answer(self) -> TargetUnavailable:
        """Return the error for an answer that did not arrive in time."""
        return TargetUnavailable(f"{self.where}: no answer within {self.settings.timeout:g} s")

    def failed(self, error: Exception) -> TargetUnavailable:
        """Return an exception of nats-py as `TargetUnavailable`."""
        return self.problem() or TargetUnavailable(f"{self.where}: {self._describe_error(error)}")

    async def _request(self, subject: str, question: bytes, nobody: str) -> bytes:
        try:
            return (await self.client.request(subject, question, timeout=self.settings.timeout + 1)).data
        except NoRespondersError as error:
            raise TargetUnavailable(f"{self.where}: {nobody}") from error

    async def _flush(self) -> None:
        await asyncio.sleep(0)  # now nats-py writes its buffer, unless the socket is full
        limit = math.ceil(self.settings.timeout) + 1  # longer than the time limit of `answered`, which ends it
        while self.client.pending_data_size:
            await self.client.flush(limit)
        await self.client.flush(limit)

    async def _complained(self, error: Exception) -> None:
        """Handle nats-py's `error_cb`: raising ends a connection attempt, which nats-py would repeat for minutes."""
        if self._connecting:
            raise error
        reason = self._describe_error(error)
        if self._is_of_one_subject(reason):
            self.news.set()
            return
        self._refusal = reason
        await self._closed()

    def _is_of_one_subject(self, _reason: str) -> bool:
        """Return whether the server's error is no reason to send nothing more."""
        return False

    async def _closed(self) -> None:
        """Wake the call that waits for an answer."""
        self.news.set()
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())

    def _insist_on_tls(self) -> None:
        if self.settings.uses_tls and not self._is_encrypted():
            raise TargetUnavailable(f"{self.where}: the server does not ask for TLS, which the settings require")

    def _secret(self, text: str) -> Callable[[], str]:
        """Return a callback for nats-py, which calls it just before it sends the secret; TLS is checked then."""

        def checked() -> str:
            self._insist_on_tls()
            return text

        return checked

    def _describe_error(self, error: Exception) -> str:
        """Return the error as a text for people."""
        if isinstance(error, TimeoutError) and not error.errno:
            text = f"no answer within {self.settings.timeout:g} s"
            if self.settings.uses_tls and not self.settings.tls_handshake_first:
                text += " (a server that begins with TLS needs tls_handshake_first=on)"
            return text
        if isinstance(error, ssl.SSLError):
            return str(error)
        if isinstance(error, OSError):
            # asyncio replaces the system's messages by its own.
            numbers = {int(number) for number in re.findall(r"\[Errno (\d+)\]", str(error))}
            return ", ".join(map(os.strerror, sorted(numbers))) or str(error) or "the server closed the connection"
        return str(error).removeprefix("nats: ").strip("'") or type(error).__name__


class TargetConnection(Connection):
    """A connection over which events are published: which subjects, and which sizes, the server refuses."""

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


def tls_context(chosen: NatsSettings | JetstreamSourceSettings) -> ssl.SSLContext:
    """Return the TLS context. Raises `TargetUnavailable` for an unusable file."""
    return tls.context(
        chosen,
        chosen.cert_authority,
        skip_verify=chosen.tls_skip_verify and chosen.uses_tls,
        client_cert=chosen.client_cert,
        client_key=chosen.client_key,
        names=("cert_authority", "client_cert", "client_key"),
    )


Secret = Callable[[str], Callable[[], str]]  # returns a callback, which is called just before the secret is sent

_SEED = re.compile(rb"SU[A-Z2-7]+")


def login_options(chosen: NatsConnection, secret: Secret) -> dict[str, Any]:
    """Return the options of nats-py's `connect` for the login in the settings; `secret` wraps each secret.

    Raises `TargetUnavailable` for unreadable or invalid files.
    """
    if chosen.token:
        return {"token": secret(chosen.token)}
    if chosen.username:
        return {"user": secret(chosen.username), "password": secret(chosen.password)}
    if chosen.nkey_seed:
        lines = _lines(_read("nkey_seed", chosen.nkey_seed))
        seed = _usable("nkey_seed", chosen.nkey_seed, next(filter(_SEED.fullmatch, lines), b""))
        return {"nkeys_seed_str": seed.decode()}
    if chosen.user_credentials:
        parts = _decorated(_read("user_credentials", chosen.user_credentials))
        jwt, seed = parts if len(parts) == 2 else (b"", b"")
        _usable("user_credentials", chosen.user_credentials, seed)
        jwt_text = secret(jwt.decode())
        return {"user_jwt_cb": lambda: jwt_text().encode(), "signature_cb": lambda nonce: _signed(seed, nonce)}
    return {}


def _read(key: str, file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise TargetUnavailable(f"{key}: {file} cannot be read: {error.strerror}") from error


def _decorated(text: bytes) -> list[bytes]:
    """Return each line of a credentials file that stands between two lines such as `-----BEGIN …-----`."""
    lines = _lines(text)
    marks = [line.startswith(b"---") and line.endswith(b"---") for line in lines]
    parts, at = [], 0
    while at + 2 < len(lines):
        if marks[at] and not marks[at + 1] and marks[at + 2]:
            parts.append(lines[at + 1])
            at += 2
        at += 1
    return parts


def _lines(text: bytes) -> list[bytes]:
    return [stripped for line in text.splitlines() if (stripped := line.strip())]


def _usable(key: str, file: str, seed: bytes) -> bytes:
    try:
        nkeys.from_seed(bytearray(seed)).wipe()
    except (nkeys.NkeysError, ValueError) as error:
        raise TargetUnavailable(f"{key}: {file} does not contain a user's NKEY seed") from error
    return seed


def _signed(seed: bytes, nonce: str) -> bytes:
    pair = nkeys.from_seed(bytearray(seed))
    try:
        return base64.b64encode(pair.sign(nonce.encode()))
    finally:
        pair.wipe()


_JOIN_SECONDS = 5.0  # a pending name resolution keeps the thread alive for longer, and the thread then ends by itself
_NEXT_ADDRESS_SECONDS = 0.25  # after which the next address of a name is tried too (RFC 8305)


class EventLoopThread:
    """A running loop. `close` closes all connections made in it, including those that their driver forgot."""

    def __init__(self, name: str) -> None:
        self._process = os.getpid()
        self._loop = _Loop()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """Whether it runs in this process. A forked child has the object but not the thread."""
        return os.getpid() == self._process

    @property
    def is_encrypted(self) -> bool:
        """Whether the most recent connection uses TLS."""
        made = self._loop.connections
        return bool(made) and made[-1].get_extra_info("ssl_object") is not None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the coroutine's result, or raise its exception. An interruption of the caller cancels it."""
        running = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def close(self) -> None:
        """Close every connection and end the thread. May be called any number of times; no effect in a forked child."""
        if not self.is_here or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_JOIN_SECONDS)

    def _live(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._end())
        finally:
            self._loop.close()

    async def _end(self) -> None:
        for connection in self._loop.connections:
            connection.abort()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0)  # an aborted connection closes its socket in the loop's next iteration
        await self._loop.shutdown_default_executor()


class _Loop(asyncio.SelectorEventLoop):
    """Keeps track of its connections: nats-py leaves one open when the login fails, and waits for frozen servers."""

    def __init__(self) -> None:
        super().__init__()
        self.connections: list[asyncio.Transport] = []
        self._places: list[tcp.Place] = []

    async def getaddrinfo(self, *args: Any, **options: Any) -> Any:
        entries = tcp.ordered(await super().getaddrinfo(*args, **options))
        self._places = tcp.places(entries)
        return entries

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        # An address that answers nothing leaves time for the others of the name.
        options.setdefault("happy_eyeballs_delay", _NEXT_ADDRESS_SECONDS)
        transport, protocol = await super().create_connection(*args, **options)
        self.connections.append(transport)
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)
        tcp.made(transport.get_extra_info("socket").fileno(), (host, port), self._places)
        return transport, protocol

    async def start_tls(self, *args: Any, **options: Any) -> Any:
        transport = await super().start_tls(*args, **options)
        if transport is not None:
            self.connections.append(transport)
        return transport
