"""Fork the service's processes from one process that has imported what they need, so that they share its memory.

Started by themselves, each of them holds its own copy of the same libraries, and needs seconds of processor time to
import them. The fork server is a fork of the supervisor without threads. Its children become the supervisor's own, so
they keep running if the server ends. This needs Linux; on other systems each process is started by itself.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

_SUBREAPER, _NAME = 36, 15  # of prctl(2)
_LARGEST = 1 << 17  # bytes of a request: arguments and a few variables

forked = False  # whether this process is a child of a fork server


class ForkServer:
    """A process that forks others on request. Create it before the first thread of this process.

    `preload` names the modules to import; `main` is called in each child with its arguments, and ends it by SystemExit.
    Raises `OSError` where it is not supported.
    """

    def __init__(self, preload: Sequence[str], main: Callable[[Sequence[str]], Any]) -> None:
        if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
            raise OSError("not supported here")
        _prctl(_SUBREAPER, 1)
        self._socket, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asking = threading.Lock()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        gc.collect()
        gc.freeze()  # a collection in one of the two would otherwise write to every page that they share
        self.pid = os.fork()
        if self.pid == 0:
            self._socket.close()
            _serve(far, preload, main)
        far.close()

    def start(self, arguments: Sequence[str], env: Mapping[str, str], output: int) -> int | None:
        """Start a process that writes to the descriptor `output`; return its id, None if the server is gone.

        It is a child of this process and the leader of its own session. Blocks until the modules are imported.
        """
        request = orjson.dumps([list(arguments), dict(env)])
        reading, writing = os.pipe()
        with open(reading, "rb") as answer, self._asking:  # noqa: PTH123 - a descriptor
            try:
                socket.send_fds(self._socket, [request], [output, writing])
            except OSError:
                return None
            finally:
                os.close(writing)
            return int(answer.read() or 0) or None  # nothing, if all who could answer have ended

    def close(self) -> None:
        """End the server; its children run on."""
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def reap_strays() -> None:
    """Reap one dead process that others left to this one, if there is any; the leader of a session is none of them."""
    with contextlib.suppress(OSError, IndexError):
        dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if dead is not None:
            stat = Path(f"/proc/{dead.si_pid}/stat").read_text(errors="replace")
            if int(stat.rpartition(")")[2].split()[3]) != dead.si_pid:
                os.waitpid(dead.si_pid, os.WNOHANG)


def _serve(requests: socket.socket, preload: Sequence[str], main: Callable[[Sequence[str]], Any]) -> None:
    os.setsid()  # Ctrl-C at the terminal is for the supervisor alone
    _close_all_but(requests.fileno())
    _set_title("bucketwire fork server")
    gc.disable()  # what a collection frees are holes in pages, which each child would fill, and so copy the pages
    for name in preload:
        with contextlib.suppress(Exception):  # the process that needs it reports why it cannot be imported
            importlib.import_module(name)
    gc.freeze()  # a collection in a child would otherwise write to every shared page
    gc.enable()
    while True:
        try:
            request, [output, answer], *_ = socket.recv_fds(requests, _LARGEST, 2)
        except (OSError, ValueError):  # the supervisor has ended
            os._exit(0)
        if _is_child(answer):
            requests.close()
            arguments, env = orjson.loads(request)
            _become(arguments, env, output)
            main(arguments)
            sys.exit(0)
        os.close(output)
        os.close(answer)


def _is_child(answer: int) -> bool:
    """Fork a process that the supervisor adopts; return whether this is that process.

    The child sends its process id itself, so that the supervisor gets it even if the server ends at that moment.
    """
    try:
        between = os.fork()
    except OSError:  # there can be no more processes: the supervisor sees that nobody answers
        return False
    if between:
        os.waitpid(between, 0)
        return False
    try:
        between = os.getpid()
        if os.fork():
            os._exit(0)
        os.setsid()
        while os.getppid() == between:  # not adopted yet
            time.sleep(0.001)
        os.write(answer, str(os.getpid()).encode())
        os.close(answer)
    except OSError:
        os._exit(1)
    return True


def _become(arguments: Sequence[str], env: Mapping[str, str], output: int) -> None:
    global forked  # noqa: PLW0603 - it is the process that has changed
    forked = True
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, place in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, place)
    os.close(nothing)
    os.close(output)
    os.environ.update(env)
    sys.argv = ["bucketwire", *arguments]
    _set_title(" ".join(sys.argv))


def _close_all_but(descriptor: int) -> None:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - fastest; their limit may be a billion
        if int(name) > 2 and int(name) != descriptor:
            with contextlib.suppress(OSError):  # that of the listing itself is closed
                os.close(int(name))


def _set_title(title: str) -> None:
    """Show this text in `ps`, as far as the memory of the original arguments reaches."""
    _prctl(_NAME, title.removeprefix("bucketwire ").encode()[:15])
    with contextlib.suppress(OSError, IndexError):
        stat = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
        start, end = int(stat[45]), int(stat[46])
        if 0 < start < end:
            size = end - start
            ctypes.memmove(start, title.encode()[: size - 1].ljust(size, b"\0"), size)


def _prctl(option: int, value: int | bytes) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
