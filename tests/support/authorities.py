"""One authority for TLS clients of the tests, of the 140 that certifi has: none of them vouches for a server here.

To read them takes a client of httpx 25 ms of processor time, and most of the tests' clients speak plain HTTP.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import certifi

from tests import services

_all = certifi.where


def share() -> None:
    """Let every client that asks certifi get along with one."""
    certifi.where = _one


@cache
def _one() -> str:
    first, end, _ = Path(_all()).read_text().partition("-----END CERTIFICATE-----\n")
    file = services.new_folder("authorities") / "one.pem"
    file.write_text(first + end)
    return str(file)
