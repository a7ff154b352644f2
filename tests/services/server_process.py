"""A real server as a foreground child of the tests: how every one of them is started, awaited, hurt and stopped."""

from __future__ import annotations

import atexit
import contextlib
import http.client
import itertools
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import psutil

from tests import provision
from tests.services import reaper
from tests.services.speed import slowness
from tests.support import debian_tree

LOOPBACK = "127.0.0.1"
USER = "alice"
PASSWORD = "s3cret"
NEWEST = os.environ.get("TEST_SERVERS") == "newest"  # of each server Debian's newest version, see `make matrix`
NONE = os.environ.get("TEST_SERVERS") == "none"  # but what pip brings, see `make check`

logs: dict[Path, str] = {}  # of every server that this test process has made and that has not ended, with its name
_issued: set[int] = set()
_numbers = itertools.count(1)


def need(name: str) -> None:
    """Return when the server called `name` can be started here; else skip the test.

    Under CI=true it fails instead, if the server is one of those that `make test` provides. Outside of pytest it is a
    LookupError.
    """
    if NONE:
        import pytest

        pytest.skip("without servers, as `make check` asks for")
    reason = provision.missing(name)
    if reason is None:
        return
    if "pytest" not in sys.modules:
        raise LookupError(reason)
    import pytest

    if os.environ.get("CI") == "true" and provision.RECIPES[name].usual:
        pytest.fail(reason)
    pytest.skip(reason)


def free_port() -> int:
    """A loopback TCP port that nothing uses and that no outgoing connection can take while its server is down."""
    try:
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        lowest = 32768
    while True:
        port = random.randrange(10000, lowest)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if port in _issued or probe.connect_ex((LOOPBACK, port)) == 0:
                continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
            _issued.add(port)
            return port


def accepting(place: int | Path) -> None:
    """OSError unless something accepts on the port or unix socket: several clients leak their socket when refused."""
    if isinstance(place, int):
        socket.create_connection((LOOPBACK, place), timeout=5).close()
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(place))


def get(port: int, path: str) -> None:
    """OSError or AssertionError unless a plain HTTP server on the port answers 200: cheaper than a client's first."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=5)
    try:
        connection.request("GET", path)
        assert connection.getresponse().status == 200
    finally:
        connection.close()


def until(condition: Callable[[], object], timeout: float = 10, *, what: str = "") -> None:
    """Return as soon as `condition()` is true; an AssertionError says after `timeout` seconds what did not come.

    On a machine that was slower at the start of the run the limit is longer in proportion.
    """
    timeout *= slowness()
    deadline = time.monotonic() + timeout
    for looked in looks():
        if condition():
            return
        assert looked < deadline, f"not within {timeout:g} s: {what or getattr(condition, '__name__', condition)}"


def looks() -> Iterator[float]:
    """The time of each look, of which the next follows after 10 ms at first.

    Looking takes a third of the time at most, and less the longer it is waited: else those who wait would keep those
    from working whom they wait for. It delays nobody by more than a tenth of the wait, and by 0.2 s.
    """
    first = time.monotonic()
    while True:
        began = time.monotonic()
        yield began
        now = time.monotonic()
        time.sleep(min(0.2, max(0.01, 2 * (now - began), (now - first) / 10)))


@dataclass
class _Session:
    """What this test process has started: the folder of all servers, and the reaper that outlives it."""

    owner: int
    root: Path
    watch: subprocess.Popen[str]
    running: set[Server] = field(default_factory=set)

    def tell(self, line: str) -> None:
        assert self.watch.stdin is not None
        self.watch.stdin.write(line + "\n")
        self.watch.stdin.flush()

    def close(self) -> None:
        if os.getpid() != self.owner:  # a forked child must not take its parent's servers down
            return
        for server in list(self.running):
            with contextlib.suppress(TimeoutError):
                server.kill()
        assert self.watch.stdin is not None
        self.watch.stdin.close()
        self.watch.wait(300)  # a benchmark's folder may have hundreds of thousands of files


@cache
def _session() -> _Session:
    root = Path(tempfile.mkdtemp(prefix="bucketwire-"))
    root.chmod(0o711)  # PostgreSQL runs as a user of its own and has to pass through
    argv = [sys.executable, str(Path(reaper.__file__)), str(root)]
    watch = subprocess.Popen(argv, stdin=subprocess.PIPE, text=True, start_new_session=True, cwd="/")
    session = _Session(os.getpid(), root, watch)
    assert watch.stdin is not None
    pipe = watch.stdin.fileno()
    os.register_at_fork(after_in_child=lambda: _let_go(pipe))
    atexit.register(session.close)
    return session


def _let_go(pipe: int) -> None:
    """In a forked child: holding the pipe open would keep the reaper waiting after the tests themselves are gone."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, pipe, inheritable=False)  # not closed: the number could come to mean another file
    os.close(null)


def new_folder(name: str) -> Path:
    """A fresh folder below this test process's own, which is removed when the process ends."""
    folder = _session().root / f"{name}-{next(_numbers)}"
    folder.mkdir(mode=0o755)
    return folder


def forget_logs() -> None:
    """Take the logs of servers that have ended out of `logs`: each test looks at all that are there."""
    if logs:
        for log in logs.keys() - {server.log for server in _session().running}:
            del logs[log]


class Child(Protocol):
    """What is asked of a server's process: a `subprocess.Popen`, or what is like it."""

    @property
    def pid(self) -> int: ...

    returncode: Any

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


@dataclass(eq=False)
class Server:
    """One server: `port`, `pid`, `log`; start, stop, kill, freeze, thaw; as a context manager it is stopped at the end.

    Its port, folder and settings are fixed for its life, so `start()` after `stop()` or `kill()` is a restart on the
    same port with the same files.
    """

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    patience: ClassVar[float] = 30
    newest: ClassVar[Path | None] = None  # the folder with its newest version, where there is one besides

    folder: Path = field(init=False)
    log: Path = field(init=False)
    port: int = field(init=False)
    started_in: float = field(init=False, default=0)
    _child: Child | None = field(init=False, default=None, repr=False)
    _frozen: bool = field(init=False, default=False, repr=False)
    _leader: psutil.Process | None = field(init=False, default=None, repr=False)  # its number may come to mean another

    def __post_init__(self) -> None:
        self.check()
        self.folder = new_folder(self.name)
        self.log = self.folder / "log"
        logs[self.log] = self.name
        self.port = free_port()
        self.prepare()

    @property
    def tree(self) -> Path | None:
        """The folder with its newest version, if that is to run."""
        return self.newest if NEWEST else None

    # --- what each server says of itself

    def check(self) -> None:
        """Skip or fail the test where this server cannot be had."""
        need(self.tree.name if self.tree else self.name)

    def prepare(self) -> None:
        """Write what the server needs before its first start: configuration, certificates, an empty data folder."""

    def argv(self) -> Sequence[str | Path]:
        """The command that runs it in the foreground."""
        raise NotImplementedError

    def env(self) -> Mapping[str, str]:
        """What its environment has besides PATH and the like."""
        return {}

    def user(self) -> str | None:
        """The user to run it as, where it refuses root."""
        return None

    def spawn(self) -> Child:
        """Start the process."""
        return spawn(self.argv(), self.log, env=self.env(), user=self.user(), tree=self.tree)

    def set_up(self, argv: Sequence[str | Path]) -> None:
        """Run a tool of its own to the end; RuntimeError with the log's end when it fails."""
        run_to_end(argv, self.log, user=self.user(), tree=self.tree)

    def ping(self) -> None:
        """One real call by a real client; any exception means not ready yet."""
        raise NotImplementedError

    # --- its life

    @property
    def pid(self) -> int:
        """The running child's process id."""
        assert self._child is not None, f"{self.name} is not running"
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether the child lives; one that ended by itself does not."""
        return self._child is not None and self._child.poll() is None

    def start(self) -> Self:
        """Start it and return when a real client got an answer; RuntimeError with the log's end when none came."""
        assert self._child is None, f"{self.name} is already started"
        logs[self.log] = self.name
        began = time.monotonic()
        self._child = self.spawn()
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended already
            self._leader = psutil.Process(self._child.pid)
        _session().running.add(self)
        track(self._child)
        for looked in looks():
            try:
                self.ping()
            except Exception as not_yet:  # every client has its own errors; the deadline decides
                why = f"ended with {self._child.returncode}" if self._child.poll() is not None else ""
                why = why or ("does not answer" if looked - began > self.patience * slowness() else "")
                if why:
                    self.kill()
                    raise RuntimeError(f"{self.name} {why}: {not_yet!r}\n{self.tail()}") from not_yet
            else:
                break
        self.started_in = time.monotonic() - began
        return self

    def stop(self) -> None:
        """Ask it to end and return when it and all its children are gone; nothing to do when it is down."""
        if self._child is None:
            return
        if self._frozen:
            self.thaw()
        members = self._members()
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self._child.send_signal(self.stop_signal)
            self._child.wait(self.patience * slowness())
        self._end(members)

    def kill(self) -> None:
        """SIGKILL it and all its children, as a crash would, and return when they are gone."""
        if self._child is not None:
            self._end(self._members())

    def _members(self) -> list[psutil.Process]:
        return [] if self._leader is None else reaper.family(self._leader)

    def _end(self, members: list[psutil.Process]) -> None:
        assert self._child is not None
        child, self._child, self._leader, self._frozen = self._child, None, None, False
        # Our own child stays a zombie until we wait for it, so its pid cannot have been taken by another.
        if child.returncode is None:
            child.kill()
        child.wait(10)
        reaper.end(member for member in members if member.pid != child.pid)
        _session().running.discard(self)
        untrack(child)

    def freeze(self) -> None:
        """SIGSTOP it and its children: connections are still accepted by the kernel, but nothing answers."""
        self._frozen = True

        def stopped() -> bool:
            members = {process.pid for process in self._signal(signal.SIGSTOP)}
            # A child that was made meanwhile, or that the kernel did not list while others came and went.
            return all(map(is_stopped, members)) and members == {process.pid for process in reaper.family(self.pid)}

        # A process stops thread by thread, each when it would run next: one of them could answer once more.
        until(stopped, what="all its threads stopped")

    def thaw(self) -> None:
        """SIGCONT: it goes on where it was frozen."""
        self._signal(signal.SIGCONT)
        self._frozen = False

    def _signal(self, number: signal.Signals) -> list[psutil.Process]:
        members = reaper.family(self.pid)
        for process in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        return members

    def listeners(self) -> set[tuple[str, int]]:
        """Every (address, port) that it or a child of it listens on over TCP."""
        found = set()
        for process in reaper.family(self.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                for connection in process.net_connections("tcp"):
                    if connection.status == psutil.CONN_LISTEN:
                        found.add((connection.laddr.ip, connection.laddr.port))
        return found

    def tail(self, lines: int = 40) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has reached every thread of the process, or it has ended."""
    try:
        states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):  # one of them ended just now
        return False
    return all(state in "TZX" for state in states)  # what has ended waits for a parent that may be stopped itself


def inherited(log: Path) -> dict[str, str]:
    """The environment that a server has besides its own."""
    names = ("PATH", "TMPDIR", "TZ", "JAVA_HOME", "GLIBC_TUNABLES")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return {**kept, "LANG": "C.UTF-8", "HOME": str(log.parent)}


def spawn(
    argv: Sequence[str | Path],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    user: str | None = None,
    tree: Path | None = None,
) -> subprocess.Popen[bytes]:
    """A foreground child in a session of its own, its output added to `log`; with `tree` it is a program of that."""
    if tree:
        argv, user = debian_tree.within(tree, argv, user), None
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(argument) for argument in argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=log.parent,
            env={**inherited(log), **(env or {})},
            user=user,
            group=user,
            extra_groups=[] if user else None,
        )


def run_to_end(
    argv: Sequence[str | Path],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    user: str | None = None,
    tree: Path | None = None,
) -> None:
    """Run a server's own set-up tool; RuntimeError with the log's end when it fails."""
    child = spawn(argv, log, env=env, user=user, tree=tree)
    try:
        child.wait(60 * slowness())
    except subprocess.TimeoutExpired:
        reaper.end(reaper.family(child.pid))
        child.wait()
    if child.returncode:
        ending = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise RuntimeError(f"{argv[0]} ended with {child.returncode}\n{ending}")


def readable(descriptor: int, timeout: float | None) -> bool:
    """Whether something can be read within so many seconds; `select` knows no descriptor above 1,023."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(None if timeout is None else timeout * 1000))


def track(child: Child) -> None:
    """Have the child killed, with its family, when this process is gone."""
    _session().tell(f"+{child.pid}")


def untrack(child: Child) -> None:
    """The child has ended; its number may come to mean another process."""
    _session().tell(f"-{child.pid}")
