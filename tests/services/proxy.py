"""A wire in front of a real server that can be hurt: slow, cut, silent, muted or half open, and healed again."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from random import choice, randint, random

from tests.services.server_process import LOOPBACK

INTERIM = (
    b"HTTP/1.1 102 Processing\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\nLink: </b.css>\r\n\r\n",
)
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER without a time: close() sends RST in place of FIN


@dataclass(eq=False)
class _Wire:
    """One connection, to the client and to the server. Once it has lost a byte it is `silent` for good."""

    near: socket.socket
    far: socket.socket
    silent: threading.Event = field(default_factory=threading.Event)
    unanswered: threading.Event = field(default_factory=threading.Event)  # the next answer is lost
    answered: threading.Event = field(default_factory=threading.Event)  # the server has answered, or is gone

    def reset(self) -> None:
        """End it as a machine does that knows nothing of it."""
        for end in (self.near, self.far):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.shutdown(socket.SHUT_RD)  # wakes the thread that reads from it
            end.close()

    def close(self) -> None:
        """End it as usual."""
        for end in (self.near, self.far):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Proxy:
    """Passes bytes between a port of its own and a server's, whose answers go through `change`.

    One fault at a time: each method ends the one before. After `heal()` new connections are as good as ever; those
    that have lost something stay as they are, as they would behind a router that forgot them: silent, never ended.
    """

    def __init__(
        self, to: int, change: Callable[[bytes], bytes] = bytes, *, hang_up_on: bytes = b"", port: int = 0
    ) -> None:
        """With `hang_up_on` a connection is reset when its client sends these bytes; any port, unless one is given."""
        self._to, self._change, self._hang_up_on = to, change, hang_up_on
        self._unanswered, self._at_once = b"", 0
        self.lost = threading.Event()  # whether an answer was lost by `lose_answer_to()`
        self._delay = self._drip = 0.0
        self._interim = 0.0
        self._flood: Iterable[bytes] | None = None
        self.flooded = 0
        self._refusing = False
        self._reply: Callable[[bytes], bytes] | None = None
        self._swallowing, self._muting = threading.Event(), threading.Event()
        self._holding, self._released = threading.Event(), threading.Event()
        self.held = threading.Event()  # whether something is kept back by `hold_next()`
        self._to_hold = b""
        self._held_wire: _Wire | None = None
        self._wires: list[_Wire] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((LOOPBACK, port), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self._run(self._accept)

    def slow(self, seconds: float) -> None:
        """Whatever is said takes so much longer, in each direction."""
        self.heal()
        self._delay = seconds

    def drip(self, seconds: float, after: int = 0) -> None:
        """What the server says passes byte by byte, each after so many seconds; so many bytes pass at once before."""
        self.heal()
        self._at_once, self._drip = after, seconds

    def precede(self, share: float) -> None:
        """Such a share of HTTP answers, by chance, comes after one to three interim answers."""
        self.heal()
        self._interim = share

    def flood(self, answer: Iterable[bytes]) -> None:
        """Send this in place of answers until the client hangs up; `flooded` is the most bytes on one connection."""
        self.heal()
        self.flooded = 0
        self._flood = answer

    def reply(self, reply: Callable[[bytes], bytes]) -> None:
        """Answer what clients say in the server's place; what this has no answer to passes."""
        self.heal()
        self._reply = reply

    def cut(self) -> None:
        """Every connection is reset, and each new one as soon as it is made."""
        self.heal()
        self._refusing = True
        for wire in self._wires:
            wire.reset()

    def swallow(self) -> None:
        """A black hole: connections are accepted, those there are stay, and nothing passes either way."""
        self.heal()
        self._swallowing.set()

    def mute(self) -> None:
        """What clients say arrives; nothing comes back."""
        self.heal()
        self._muting.set()

    def halve(self) -> None:
        """The server's end of every connection closes, and no client is told; new connections are good."""
        self.heal()
        for wire in self._wires:
            wire.silent.set()
            with contextlib.suppress(OSError):
                wire.far.shutdown(socket.SHUT_RDWR)

    def lose_answer_to(self, request: bytes) -> None:
        """Pass on what has these bytes, once, and reset its connection in place of the answer."""
        self._unanswered = request

    def heal(self) -> None:
        """Pass on again whatever new connections bring."""
        self._delay, self._refusing, self._drip, self._interim, self._flood = 0.0, False, 0.0, 0.0, None
        self._reply = None
        for fault in (self._swallowing, self._muting):
            if fault.is_set():
                for wire in self._wires:
                    wire.silent.set()
            fault.clear()

    def hold_next(self, containing: bytes = b"") -> None:
        """Keep back what a client says next, with these bytes, until `release()`; all that others say passes."""
        self._to_hold = containing
        self.held.clear()
        self._released.clear()
        self._holding.set()

    def release(self) -> None:
        """Pass on what was kept back."""
        self._holding.clear()
        self._released.set()

    def let_arrive(self) -> None:
        """Pass on what was kept back, and wait until the server has carried it out or given its connection up."""
        wire = self._held_wire
        assert wire is not None
        wire.answered.clear()
        self.release()
        assert wire.answered.wait(30)

    def close(self) -> None:
        """End every connection."""
        self.release()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(10)
        for wire in self._wires:
            wire.close()
        for thread in self._threads:
            thread.join(10)

    def _run(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket()
                wire = _Wire(near, far)
                with contextlib.suppress(OSError):  # a server that is down resets whoever comes
                    if not self._refusing:
                        if self._swallowing.is_set():
                            wire.silent.set()
                        else:
                            far.connect((LOOPBACK, self._to))
                        self._wires.append(wire)
                        self._run(self._pump, wire, near, far)
                        self._run(self._pump, wire, far, near)
                        continue
                wire.reset()

    def _dripped(self, sink: socket.socket, received: bytes) -> bytes:
        """Pass on byte by byte, as long as it drips; return what is left."""
        if not self._drip:
            return received
        passed, self._at_once = received[: self._at_once], max(0, self._at_once - len(received))
        sink.sendall(passed)
        received = received[len(passed) :]
        while received and self._drip:
            time.sleep(self._drip)
            sink.sendall(received[:1])
            received = received[1:]
        return received

    def _send_interim(self, sink: socket.socket, answer: bytes) -> None:
        """Send what comes before this answer, now and then by itself."""
        if answer.startswith(b"HTTP/1.1 ") and random() < self._interim:
            for _ in range(randint(1, 3)):
                sink.sendall(choice(INTERIM))
                time.sleep(choice([0, 0, 0.005]))

    def _pour(self, sink: socket.socket) -> None:
        """Send the flood, if there is one, until the client hangs up."""
        sent = 0
        for piece in self._flood or ():
            sink.sendall(piece)
            sent += len(piece)
            self.flooded = max(self.flooded, sent)

    def _hold(self, wire: _Wire, said: bytes) -> None:
        if self._holding.is_set() and self._to_hold in said:
            self._holding.clear()
            self._held_wire = wire
            self.held.set()
            self._released.wait()

    def _replied(self, wire: _Wire, said: bytes) -> bool:
        """Whether what a client says was answered in the server's place; else note whether it gets its answer."""
        reply = self._reply  # `heal()` may end it at any moment
        if reply is not None and (instead := reply(said)):
            wire.near.sendall(instead)
            return True
        if self._unanswered and self._unanswered in said:
            self._unanswered = b""
            wire.unanswered.set()
        return False

    def _pump(self, wire: _Wire, source: socket.socket, sink: socket.socket) -> None:
        answers = source is wire.far
        with contextlib.suppress(OSError):
            while received := source.recv(1 << 16):
                if self._hang_up_on and not answers and self._hang_up_on in received:
                    wire.reset()
                    return
                if not answers and self._replied(wire, received):
                    continue
                if answers and wire.unanswered.is_set():
                    self.lost.set()
                    wire.reset()
                    return
                if self._delay:
                    time.sleep(self._delay)
                if answers:
                    wire.answered.set()
                else:
                    self._hold(wire, received)
                if self._swallowing.is_set() or (answers and self._muting.is_set()):
                    wire.silent.set()
                if answers:
                    self._pour(sink)
                    self._send_interim(sink, received)
                    received = self._dripped(sink, self._change(received))
                if not wire.silent.is_set() or (not answers and self._muting.is_set()):
                    sink.sendall(received)
        if answers:
            wire.answered.set()
        if not wire.silent.is_set() and not self._swallowing.is_set():  # else not even the end is told
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def proxy(
    to: int, change: Callable[[bytes], bytes] = bytes, *, hang_up_on: bytes = b"", port: int = 0
) -> Iterator[Proxy]:
    """A proxy to this port, ended with the block."""
    made = Proxy(to, change, hang_up_on=hang_up_on, port=port)
    try:
        yield made
    finally:
        made.close()
