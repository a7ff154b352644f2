"""Keeps the service's processes running: starts them, starts again what dies, and ends all of them in order."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

from app.logs import members
from app.supervisor import guard
from app.supervisor.children import Child

_STEADY = 30.0  # seconds after which a process that ran counts as sound again
_LONGEST_WAIT = 30.0
_LOOK = 0.5  # seconds between two looks at the logs
_LARGEST_LOG = 16 * 1024 * 1024
_WARNING = re.compile(r"[ \[](WARNING|ERROR|CRITICAL)[] /]")  # as gunicorn, celery and our own loggers write it
_WARNINGS = ("WARNING", "ERROR", "CRITICAL")

Say = Callable[[str], None]
Repeat = Callable[[str, str], None]


class Supervisor:
    """One for each `bucketwire up`. `logs` is the folder of the logs, `say` prints a line to the person at the console.

    `repeat` prints a warning of a process, whose name it is given first; without one `say` does.
    `held` are descriptors that have to stay open until the last process has ended, such as a lock's.
    """

    def __init__(self, logs: Path, say: Say, held: Sequence[int] = (), repeat: Repeat | None = None) -> None:
        self._logs = logs
        self._say = say
        self._repeat = repeat or (lambda name, line: say(f"{name}: {line}"))
        self._held = held
        self._running: dict[int, Child] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._ending = asyncio.Event()
        self._guard = self._start_guard()

    async def run(self, start: Callable[["Supervisor"], Awaitable[None]]) -> None:
        """Run `start`, which keeps processes running; return when a signal has asked for the end and all have ended.

        SIGINT, SIGTERM and SIGHUP ask for the end; a second one ends everything at once. What `start` raises ends
        everything too, and is raised again.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._end_asked)
        starting = asyncio.ensure_future(start(self))
        asked = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await asked
        finally:
            starting.cancel()
            asked.cancel()
            await self._end()

    def keep(self, children: Iterable[Child]) -> None:
        """Start these and keep them running."""
        for child in children:
            log = Log(self._logs / f"{child.name}.log")
            self._keepers.append(asyncio.create_task(self._keep(child, log)))
            self._keepers.append(asyncio.create_task(self._follow(child, log)))

    async def _keep(self, child: Child, log: "Log") -> None:
        failures = 0
        while not self._ending.is_set():
            began = time.monotonic()
            code = await self._run(child, log)
            if self._ending.is_set():
                return
            failures = 1 if time.monotonic() - began > _STEADY else failures + 1
            wait = back_off(failures)
            self._say(f"{child.name} ended ({ending(code)}); starting it again in {wait:g} s; its log: {log.path}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), wait)

    async def _run(self, child: Child, log: "Log") -> int:
        with log.path.open("ab") as output:
            # A session of its own: Ctrl-C reaches only the supervisor, and the order of the end is kept.
            started = await asyncio.create_subprocess_exec(
                *child.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | child.env,
                start_new_session=True,
            )
        self._running[started.pid] = child
        self._tell("+", started.pid)
        if self._ending.is_set():  # asked for while it started: the guard may not listen any more
            started.kill()
        code = await started.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(started.pid, signal.SIGKILL)  # a killed worker leaves its pool behind
        self._tell("-", started.pid)
        del self._running[started.pid]
        return code

    async def _follow(self, child: Child, log: "Log") -> None:
        while True:
            for line in log.news():
                if not child.quiet and warns(line):
                    self._repeat(child.name, line)
            await asyncio.sleep(_LOOK)

    def _end_asked(self) -> None:
        if self._ending.is_set():
            for leader in list(self._running):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(leader, signal.SIGKILL)
        else:
            self._say("ending …")
        self._ending.set()

    async def _end(self) -> None:
        """Let the guard end them all: the same way as when nobody is left to ask for it."""
        self._ending.set()
        if self._guard.poll() is not None:
            self._guard = self._start_guard()
            for pid in self._running:
                self._tell("+", pid)
        if self._guard.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.close()
        while self._running:
            await asyncio.sleep(0.02)
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.to_thread(self._guard.wait)

    def _start_guard(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-I", "-S", guard.__file__]
        return subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True, pass_fds=self._held)

    def _tell(self, sign: str, pid: int) -> None:
        if self._guard.poll() is None and self._guard.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # it is gone or told to end: _end() sees to the first
                self._guard.stdin.write(f"{sign}{self._running[pid].stage} {pid}\n".encode())
                self._guard.stdin.flush()


class Log:
    """A process's log file, appended to by the process itself; kept short by moving it to `….log.1`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self._read = path.stat().st_size

    def news(self) -> list[str]:
        """The lines that are new since the last call; half a line comes with its other half."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            read = file.read(1 << 20)
        whole = read if len(read) == 1 << 20 else read[: read.rfind(b"\n") + 1]
        self._read += len(whole)
        if self._read > _LARGEST_LOG:
            # The process holds the file open, so it is copied and emptied; a line written just then is lost.
            self.path.with_suffix(".log.1").write_bytes(self.path.read_bytes())
            os.truncate(self.path, 0)
            self._read = 0
        return whole.decode(errors="replace").splitlines()


def warns(line: str) -> bool:
    """Whether a line of a log is one that the person at the console has to see, in either form of logs."""
    found = members(line)
    return bool(_WARNING.search(line)) if found is None else found.get("level") in _WARNINGS


def back_off(failures: int) -> float:
    """Seconds until a process that ended for the `failures`-th time in a row starts again."""
    return min(_LONGEST_WAIT, 0.5 * float(1 << min(failures - 1, 10)))


def ending(code: int) -> str:
    """How a process ended, for people."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
