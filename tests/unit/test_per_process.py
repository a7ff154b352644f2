"""An object of which each process has its own."""

import itertools
import os
from concurrent.futures import ThreadPoolExecutor

from app.per_process import PerProcess


def test_all_threads_of_a_process_have_the_same_one() -> None:
    numbers = itertools.count()
    own = PerProcess(lambda: next(numbers))
    with ThreadPoolExecutor(4) as threads:
        assert {*threads.map(lambda _: own.get(), range(100))} == {0}


def test_a_forked_process_makes_its_own() -> None:
    own = PerProcess(os.getpid)
    assert own.get() == os.getpid()
    if (child := os.fork()) == 0:
        os._exit(0 if own.forget() is None and own.get() == os.getpid() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert own.get() == os.getpid()


def test_one_that_is_forgotten_is_made_again() -> None:
    numbers = itertools.count()
    own = PerProcess(lambda: next(numbers))
    assert own.forget() is None
    assert (own.get(), own.forget(), own.forget(), own.get()) == (0, 0, None, 1)
