"""Processes of Python that are forked, so that their libraries are imported once and not in each of them.

An import takes about 2 s of processor time for each role of the service, and 0.1 s for a receiver; the tests start
hundreds of them. A forked role goes the way of one that `bucketwire up` forks: `app.supervisor.fork_server.forked` is
true in it. Its environment and its session are its own. What has to be started afresh (with `PYTHONPATH`, say) is none
of this.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.services import fork_server
from tests.services.server_process import inherited, new_folder, readable, track

_TOP = Path(__file__).parents[2]
_COMMAND = Path(__file__).with_name("forked_command.py")
# What the roles of the service need. Whatever reads its settings as it is imported (workers.celery) is left out; it
# needs little time without the others.
SERVICE = (
    "app.cli.commands.processes", "app.supervisor.fork_server", "celery.bin.celery", "celery.apps.worker",
    "celery.apps.beat", "celery.concurrency.prefork", "celery.concurrency.solo", "celery.fixups.django",
    "kombu.transport.redis", "kombu.transport.pyamqp", "workers.runtime", "workers.scheduled_jobs",
    "workers.delivery.pooled_target", "workers.telemetry.metrics", "app.logs", "app.wakeups", "gunicorn.app.wsgiapp",
    "gunicorn.workers.gthread", "app.server.worker_imports", "psycopg2", "pymysql",
    "sqlalchemy.dialects.postgresql", "sqlalchemy.dialects.mysql", "sqlalchemy.dialects.sqlite", "flower.app",
    "flower.command",
)  # fmt: skip


class Forked:
    """A child of the fork server, with that of `subprocess.Popen` which the tests use."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._handle = -1  # the number may come to mean another process, this may not
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            self._handle = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None and readable(self._status, 0):
            told = os.read(self._status, 16)
            self.returncode = int(told) if told else -signal.SIGKILL  # the fork server itself is gone
            self._close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            readable(self._status, timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def send_signal(self, sig: int) -> None:
        """Nothing, where it has ended."""
        if self.poll() is None and self._handle >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __del__(self) -> None:
        if self.returncode is None:
            self._close()

    def _close(self) -> None:
        os.close(self._status)
        if self._handle >= 0:
            os.close(self._handle)


class _Server:
    """A fork server of this test process, with `modules` imported and the library `preloaded`."""

    def __init__(self, preloaded: str, modules: Sequence[str]) -> None:
        self.owner = os.getpid()
        self.socket, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        log = new_folder("forking") / "log"
        self.command = log.with_name("bucketwire")
        commands = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far, commands, log.open("ab") as output:
            commands.bind(str(log.with_name("socket")))
            commands.listen()
            own = [far.fileno(), commands.fileno()]
            self.child = subprocess.Popen(
                [sys.executable, "-P", Path(fork_server.__file__), *map(str, own), *modules],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=log.parent,
                env=inherited(log) | {"PYTHONPATH": str(_TOP), "PYTHONUNBUFFERED": "1", "LD_PRELOAD": preloaded},
                pass_fds=own,
                start_new_session=True,
            )
        program = shlex.join([sys.executable, "-IS", str(_COMMAND), str(log.with_name("socket"))])
        self.command.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        self.command.chmod(0o755)
        track(self.child)
        atexit.register(self.close)

    def close(self) -> None:
        """End the fork server, but not what it has forked."""
        if os.getpid() == self.owner:
            self.socket.close()
            self.child.wait(10)

    def start(self, argv: Sequence[str], env: Mapping[str, str], log: Path) -> Forked:
        request = json.dumps({"argv": list(argv), "env": dict(env), "folder": str(log.parent)})
        reading, writing = os.pipe()
        try:
            with log.open("ab") as output, open(os.devnull, "rb") as nothing:  # noqa: PTH123 - no file
                streams = [nothing.fileno(), output.fileno(), output.fileno()]
                socket.send_fds(self.socket, [request.encode()], [*streams, writing])
        finally:
            os.close(writing)
        return Forked(int(os.read(reading, 16)), reading)


@cache
def _server(_process: int, preloaded: str, modules: tuple[str, ...]) -> _Server:
    return _Server(preloaded, modules)


_asking = threading.Lock()  # roles are started at once, and one fork server is enough for them


def fork(argv: Sequence[str], log: Path, *, env: Mapping[str, str], modules: tuple[str, ...] = SERVICE) -> Forked:
    """Run `python -m` with these arguments in a forked process; its output goes to `log`, its folder is the log's.

    It is forked from a process that has imported these `modules`: the fewer they are, the less a fork costs.
    """
    with _asking:
        server = _server(os.getpid(), env.get("LD_PRELOAD", ""), modules)
    return server.start(argv, {**inherited(log), **env}, log)


def command() -> Path:
    """The program `bucketwire`, whose process is forked: for commands that end, since no signal reaches it.

    A command takes most of a second of processor time otherwise, above all for what it imports.
    """
    with _asking:
        return _server(os.getpid(), "", SERVICE).command
