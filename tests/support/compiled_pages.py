"""Jinja's templates and Werkzeug's rules, compiled once for all apps of a test process.

An app keeps what it has compiled for itself, and nearly every test of the API or the console has an app of its own: it
would spend most of its time on compiling the same templates and the builders of the same addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import Flask
from jinja2 import BytecodeCache
from jinja2.bccache import Bucket
from werkzeug.routing import Rule

_Builder = Callable[..., tuple[str, str]]


def share() -> None:
    """Let every app take part."""
    Flask.jinja_options = {**Flask.jinja_options, "bytecode_cache": _Templates()}
    compile_builder: Callable[[Rule, bool], _Builder] = Rule._compile_builder
    made: dict[tuple[Any, ...], _Builder] = {}

    def compiled(rule: Rule, append_unknown: bool = True) -> _Builder:
        if rule.defaults:  # they are in the code, as the rule's converters write them
            return compile_builder(rule, append_unknown)
        key = (rule.rule, *rule._trace, append_unknown)  # the converters are found through the rule that it is told
        if key not in made:
            made[key] = compile_builder(rule, append_unknown)
        return made[key]

    Rule._compile_builder = compiled  # type: ignore[method-assign]


class _Templates(BytecodeCache):
    """By name and source."""

    def __init__(self) -> None:
        self._code: dict[tuple[str, str], Any] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._code.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[bucket.key, bucket.checksum] = bucket.code
