"""Keep the service's processes running: start them, restart those that die, and stop all of them in order.

`Child` is a process, with the stage in which it is stopped.
"""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType

from app.config.settings import Settings
from app.logs import members
from app.supervisor import guard
from app.supervisor.fork_server import ForkServer, reap_strays
from app.supervisor.start import redis_command

_STEADY = 30.0  # seconds of running after which earlier failures no longer count
_MAX_WAIT_SECONDS = 30.0
_POLL = 0.5  # seconds between two reads of the logs
_LARGEST_LOG = 16 * 1024 * 1024
_WARNING = re.compile(r"\[\d+\] (WARNING|ERROR|CRITICAL) ")  # as all processes log in text
_WARNINGS = ("WARNING", "ERROR", "CRITICAL")

Say = Callable[[str], None]
Repeat = Callable[[str, str], None]
Wait = Callable[[], Awaitable[int]]
API, BEAT, WORKERS, FLOWER, BROKER = range(5)  # stop first what accepts new work, last what the others need


@dataclass(frozen=True, slots=True)
class Child:
    """One process of the service. `quiet`: its warnings appear only in its log file.

    `bucketwire` are its arguments if it is a command of ours, which need not be started afresh but can be forked.
    """

    name: str
    stage: int
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    quiet: bool = False
    bucketwire: Sequence[str] = ()


def broker(settings: Settings) -> Child:
    """Return the embedded Redis. Raises `RedisMissing`."""
    return Child("redis", BROKER, redis_command(settings), quiet=True)


def service(
    *, concurrency: int, flower_port: int, flower_url: str = "", shared: Mapping[str, str] = MappingProxyType({})
) -> list[Child]:
    """Return the processes that always run, in start order. The drain has its own worker, so no delivery delays it.

    `flower_url` is where browsers find Flower, if not at its own port; `shared` is the environment that the API and the
    delivering worker have in common.
    """
    flower = f"127.0.0.1:{flower_port}"
    # It is the only API, and there is no time for a delay before it is killed.
    api_env = {"BUCKETWIRE_FLOWER_URL": flower_url or f"http://{flower}/", "BUCKETWIRE_STOP_DELAY": "0", **shared}
    return [
        _own("api", API, "api", env=api_env),
        _own("drain", WORKERS, "worker", "--only", "drain"),
        _own("targets", WORKERS, "worker", "--only", "targets", "--concurrency", str(concurrency), env=shared),
        _own("beat", BEAT, "beat"),
        _own("flower", FLOWER, "flower", "--listen", flower, quiet=True),
    ]


def reconciler() -> Child:
    """Return the worker that runs scheduled reconciliations."""
    return _own("spark", WORKERS, "worker", "--only", "spark")


def puller() -> Child:
    """Return the worker that pulls from sources."""
    return _own("sources", WORKERS, "worker", "--only", "sources")


def _own(
    name: str, stage: int, *arguments: str, env: Mapping[str, str] = MappingProxyType({}), quiet: bool = False
) -> Child:
    return Child(name, stage, [sys.executable, "-P", "-m", "bucketwire", *arguments], env, quiet, arguments)


class Supervisor:
    """The supervisor of one `bucketwire up`. `logs` is the folder of log files, `say` prints a line on the console.

    `repeat` prints a warning of a process, whose name is its first argument; by default `say` does.
    `held` are descriptors that must stay open until the last process has ended, such as a lock's. With `forks`,
    processes of ours are forked there; `run` ends it.
    """

    def __init__(
        self,
        logs: Path,
        say: Say,
        held: Sequence[int] = (),
        repeat: Repeat | None = None,
        forks: ForkServer | None = None,
    ) -> None:
        self._logs = logs
        self._say = say
        self._repeat = repeat or (lambda name, line: say(f"{name}: {line}"))
        self._held = held
        self._forks = forks
        self._running: dict[int, Child] = {}
        self._starting = 0  # processes that may exist and are not in `_running` yet
        self._keepers: list[asyncio.Task[None]] = []
        self._followed: list[tuple[Child, Log]] = []
        self._ending = asyncio.Event()
        self._guard = self._start_guard()

    async def run(self, start: Callable[["Supervisor"], Awaitable[None]]) -> None:
        """Run `start`, which keeps processes running; return when a signal has requested the end and all have ended.

        SIGINT, SIGTERM and SIGHUP stop the processes in order; a second one kills them at once. An exception of `start`
        also stops them, and is raised again.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._request_end)
        starting = asyncio.ensure_future(start(self))
        end_requested = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait({starting, end_requested}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await end_requested
        finally:
            starting.cancel()
            end_requested.cancel()
            await self._end()

    def keep(self, children: Iterable[Child]) -> None:
        """Start these processes and keep them running."""
        if not self._followed:
            self._keepers.append(asyncio.create_task(self._follow()))
        for child in children:
            log = Log(self._logs / f"{child.name}.log")
            self._followed.append((child, log))
            self._keepers.append(asyncio.create_task(self._keep(child, log)))

    async def _keep(self, child: Child, log: "Log") -> None:
        failures = 0
        while not self._ending.is_set():
            began = time.monotonic()
            code = await self._run(child, log)
            if self._ending.is_set():
                return
            failures = 1 if time.monotonic() - began > _STEADY else failures + 1
            wait = back_off(failures)
            self._say(f"{child.name} ended ({describe_exit(code)}); restarting it in {wait:g} s; its log: {log.path}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), wait)

    async def _run(self, child: Child, log: "Log") -> int:
        with log.path.open("ab") as output:
            self._starting += 1
            try:
                pid, wait = await self._fork(child, output.fileno()) or await self._spawn(child, output.fileno())
                self._running[pid] = child
            finally:
                self._starting -= 1
        self._notify_guard("+", pid)
        if self._ending.is_set():  # requested while it started: the guard may no longer read
            os.kill(pid, signal.SIGKILL)
        code = await wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # a killed worker leaves its pool behind
        self._notify_guard("-", pid)
        del self._running[pid]
        return code

    async def _fork(self, child: Child, output: int) -> tuple[int, Wait] | None:
        """Have a process forked; return its id and how to wait for its exit code, None if that is not possible."""
        if self._forks is None or not child.bucketwire:
            return None
        pid = await asyncio.to_thread(self._forks.start, child.bucketwire, child.env, output)
        return None if pid is None else (pid, partial(_exit_code, pid))

    @staticmethod
    async def _spawn(child: Child, output: int) -> tuple[int, Wait]:
        # In its own session, so that Ctrl-C reaches only the supervisor, which stops the processes in order.
        process = await asyncio.create_subprocess_exec(
            *child.argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | child.env,
            start_new_session=True,
        )
        return process.pid, process.wait

    async def _follow(self) -> None:
        """Repeat the warnings in all logs. One task does, so that an idle service wakes up once for all of them."""
        while True:
            for child, log in self._followed:
                with contextlib.suppress(Exception):  # a removed file, a closed console: the other logs are still read
                    self._repeat_warnings(child, log)
            if self._forks is not None:
                reap_strays()
            await asyncio.sleep(_POLL)

    def _repeat_warnings(self, child: Child, log: "Log") -> None:
        for line in log.read_new_lines():
            if not child.quiet and warns(line):
                self._repeat(child.name, line)

    def _request_end(self) -> None:
        if self._ending.is_set():
            for leader in list(self._running):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(leader, signal.SIGKILL)
        else:
            self._say("stopping …")
        self._ending.set()

    async def _end(self) -> None:
        """Let the guard stop all processes, the same way as if the supervisor was killed."""
        self._ending.set()
        if self._guard.poll() is not None:
            self._guard = self._start_guard()
            for pid in self._running:
                self._notify_guard("+", pid)
        if self._guard.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.close()
        if self._forks is not None:
            await asyncio.to_thread(self._forks.close)
        while self._running or self._starting:
            await asyncio.sleep(0.02)
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.to_thread(self._guard.wait)

    def _start_guard(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-I", "-S", guard.__file__]
        return subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True, pass_fds=self._held)

    def _notify_guard(self, sign: str, pid: int) -> None:
        if self._guard.poll() is None and self._guard.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # it died or its pipe is closed; _end() restarts a dead one
                self._guard.stdin.write(f"{sign}{self._running[pid].stage} {pid}\n".encode())
                self._guard.stdin.flush()


async def _exit_code(pid: int) -> int:
    """Wait for a child of this process that asyncio did not start; return its exit code, negative for a signal."""
    ended, descriptor = asyncio.Event(), os.pidfd_open(pid)
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Log:
    """A process's log file, written by the process itself; a long one is moved to `….log.1`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self._read = path.stat().st_size

    def read_new_lines(self) -> list[str]:
        """Return the lines written since the last call; an incomplete line is returned once it is complete."""
        size = self.path.stat().st_size
        if size < self._read:  # somebody emptied it, or removed it before the process was started again
            self._read = 0
        if size == self._read:
            return []
        with self.path.open("rb") as file:
            file.seek(self._read)
            read = file.read(1 << 20)
        whole = read if len(read) == 1 << 20 else read[: read.rfind(b"\n") + 1]
        self._read += len(whole)
        if self._read > _LARGEST_LOG:
            # The process keeps the file open, so it is copied and truncated; a line written in between is lost.
            with contextlib.suppress(OSError):  # a full disk: what was read is returned, and it is moved later
                self.path.with_suffix(".log.1").write_bytes(self.path.read_bytes())
                os.truncate(self.path, 0)
                self._read = 0
        return whole.decode(errors="replace").splitlines()


def warns(line: str) -> bool:
    """Return whether a log line, in text or JSON, is a warning or error to show on the console."""
    fields = members(line)
    return bool(_WARNING.search(line)) if fields is None else fields.get("level") in _WARNINGS


def back_off(failures: int) -> float:
    """Return the seconds to wait before restarting a process that ended `failures` times in a row."""
    return min(_MAX_WAIT_SECONDS, 0.5 * float(1 << min(failures - 1, 10)))


def describe_exit(code: int) -> str:
    """Describe an exit code or the signal that ended a process."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
