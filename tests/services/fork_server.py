"""The process that `tests.services.forking` starts: it imports the modules that it is told, and forks on request.

The tests ask over a socket of their own, commands that they type (`forked_command.py`) over one with a name. It ends
when the tests' end of theirs is closed. The reaper ends its children.
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


def serve(requests: socket.socket, commands: socket.socket) -> list[str]:
    """Fork a process for each request; returns in each of them, with its arguments."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing)
    told: dict[int, int] = {}  # by process id, whom to tell its exit code
    waiting = select.poll()  # `select` knows no descriptor above 1,023
    for each in (requests.fileno(), commands.fileno(), reading):
        waiting.register(each, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in waiting.poll()}
        if reading in ready:
            os.read(reading, 1024)
            reap(told)
        if requests.fileno() in ready:
            message, descriptors, *_ = socket.recv_fds(requests, LARGEST, 4)
            if not message:
                os._exit(0)
        elif commands.fileno() in ready:
            with commands.accept()[0] as asking:
                message, descriptors, *_ = socket.recv_fds(asking, LARGEST, 4)
        else:
            continue
        if len(descriptors) != 4:  # who asked has ended
            for descriptor in descriptors:
                os.close(descriptor)
            continue
        *streams, status = descriptors
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            commands.close()
            for descriptor in (reading, writing, status, *told.values()):
                os.close(descriptor)
            return become(json.loads(message), streams)
        for descriptor in streams:
            os.close(descriptor)
        told[pid] = status
        tell(status, pid)


def tell(status: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody asks any more
        os.write(status, f"{number:<16}".encode())


def reap(told: dict[int, int]) -> None:
    """Tell the exit codes of those that have ended."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            place = told.pop(pid)
            tell(place, os.waitstatus_to_exitcode(status))
            os.close(place)


def become(request: dict[str, object], streams: list[int]) -> list[str]:
    """Take on the input, outputs, folder and environment that were asked for; returns the arguments."""
    from app.supervisor import fork_server

    fork_server.forked = True
    os.setsid()
    for place, descriptor in enumerate(streams):
        os.dup2(descriptor, place)
        os.close(descriptor)
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
    requests, commands = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    sys.modules.setdefault("opentelemetry", None)  # type: ignore[arg-type]  # as bucketwire.start does
    for name in sys.argv[3:]:
        with contextlib.suppress(Exception):  # the process that needs it says why it cannot be imported
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    sys.argv = serve(requests, commands)
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
