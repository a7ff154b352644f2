"""The process that `tests.services.forking` starts: it imports the modules that it is told, and forks on request.

It ends when the tests' end of its socket is closed. The reaper ends its children.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time

LARGEST = 1 << 20  # bytes of a request


def serve(requests: socket.socket) -> list[str]:
    """Fork a process for each request; returns in each of them, with its arguments."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing)
    told: dict[int, int] = {}  # by process id, whom to tell its exit code
    while True:
        ready, _, _ = select.select([requests, reading], [], [])
        if reading in ready:
            os.read(reading, 1024)
            reap(told)
        if requests not in ready:
            continue
        message, descriptors, *_ = socket.recv_fds(requests, LARGEST, 2)
        if not message:
            os._exit(0)
        output, status = descriptors
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            for descriptor in (reading, writing, status, *told.values()):
                os.close(descriptor)
            return become(json.loads(message), output)
        os.close(output)
        os.write(status, f"{pid:<16}".encode())
        told[pid] = status


def reap(told: dict[int, int]) -> None:
    """Tell the exit codes of those that have ended."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            place = told.pop(pid)
            with contextlib.suppress(BrokenPipeError):  # nobody asks any more
                os.write(place, f"{os.waitstatus_to_exitcode(status):<16}".encode())
            os.close(place)


def become(request: dict[str, object], output: int) -> list[str]:
    """Take on the output, folder and environment that were asked for; returns the arguments."""
    from app.supervisor import fork_server

    fork_server.forked = True
    os.setsid()
    for place in (1, 2):
        os.dup2(output, place)
    os.close(output)
    os.chdir(str(request["folder"]))
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]
    time.tzset()
    if "CLOCK_OFFSET" in os.environ:  # see clock.c, which is preloaded
        ctypes.CDLL(None).use_clock()
    argv: list[str] = request["argv"]  # type: ignore[assignment]
    fork_server._set_title(" ".join(["bucketwire", *argv]))
    return argv


def main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    sys.modules.setdefault("opentelemetry", None)  # type: ignore[arg-type]  # as bucketwire.start does
    for name in sys.argv[2:]:
        with contextlib.suppress(Exception):  # the process that needs it says why it cannot be imported
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    sys.argv = serve(requests)
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        leave(ended.code)
    leave(None)


def leave(code: object) -> None:
    """End as Python does, but for taking apart all objects, for which each process would copy what it shares.

    An error that nobody caught ends it in Python's own way.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
    for output in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            output.flush()
    os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main()
