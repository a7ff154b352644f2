"""Threads that parse Python at the same time, as a failed test and a logged traceback make pytest do."""

from __future__ import annotations

import ast
import gc
import threading
import time
from collections.abc import Iterator

import pytest

SOURCE = f"x = [{','.join(f'a.b({number}) + c[{number}]' for number in range(200))}]\n"


@pytest.fixture
def collections_that_let_others_run() -> Iterator[None]:
    """The garbage is collected again and again, and each time another thread has a turn."""

    def pause(_phase: str, _info: dict[str, int]) -> None:
        time.sleep(0.0005)

    usual = gc.get_threshold()
    gc.set_threshold(50)
    gc.callbacks.append(pause)
    yield
    gc.callbacks.remove(pause)
    gc.set_threshold(*usual)


@pytest.mark.usefixtures("collections_that_let_others_run")
@pytest.mark.slow
def test_threads_that_parse_at_the_same_time_do_not_disturb_each_other() -> None:
    errors: list[SystemError] = []

    def parse() -> None:
        try:
            for _ in range(5):
                ast.parse(SOURCE)
        except SystemError as error:
            errors.append(error)

    threads = [threading.Thread(target=parse) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
