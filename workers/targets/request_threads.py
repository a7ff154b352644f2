"""Make requests of a call at once, in threads, with the events of an object in order."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from workers.targets.batch import Batch

MAX_THREADS = 64


class RequestThreads:
    """A pool of threads, which are idle between calls and end with `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pool: ThreadPoolExecutor | None = None

    def run(self, batch: Batch, window: int, at_once: int, send: Callable[[Sequence[int]], None]) -> None:
        """Have `send` called in up to `window` threads, with all events of about `at_once` objects each time.

        An object's events are in one call, in their order. No call is running when this returns, or is interrupted.
        """
        chains: dict[str, list[int]] = {}
        for index, event in enumerate(batch.events):
            chains.setdefault(event.path, []).append(index)
        waiting = deque(chains.values())

        def take_chains() -> None:
            while waiting:
                chosen: list[int] = []
                while len(chosen) < at_once:
                    try:
                        chosen += waiting.popleft()
                    except IndexError:  # another thread was faster
                        break
                send(sorted(chosen))

        if self._pool is None:
            self._pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix=self._name)
        threads = min(window, MAX_THREADS, len(chains), -(-len(batch.events) // at_once))
        running: list[Future[None]] = []
        try:
            for _ in range(threads):
                running.append(self._pool.submit(take_chains))  # noqa: PERF401 (an interruption must find them)
            for sending in running:
                sending.result()
        finally:
            # No request may outlive the call, even if this thread is interrupted.
            batch.stop()
            wait(running)

    def close(self) -> None:
        """End the threads."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)
