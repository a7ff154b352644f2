"""Jinja's templates, compiled once for all apps of a test process.

An app keeps what it has compiled for itself, and nearly every test of the console has an app of its own: it would spend
most of its time on compiling the same templates.
"""

from __future__ import annotations

from typing import Any

from flask import Flask
from jinja2 import BytecodeCache
from jinja2.bccache import Bucket


def share() -> None:
    """Let every app take part."""
    Flask.jinja_options = {**Flask.jinja_options, "bytecode_cache": _Templates()}


class _Templates(BytecodeCache):
    """By name and source."""

    def __init__(self) -> None:
        self._code: dict[tuple[str, str], Any] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._code.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[bucket.key, bucket.checksum] = bucket.code
