"""Flask without what would make addresses of its rules: the API and the console write their addresses themselves."""

from collections.abc import Callable
from typing import Any

from flask import Flask
from werkzeug.routing import Rule

_Builder = Callable[..., tuple[str, str]]


class _Rule(Rule):
    """Compiles what `url_for` needs when it is asked for.

    Werkzeug writes and compiles two functions for each rule when the rule is added: for all routes that takes 80 ms,
    four times as long as all else of an app, in each of the API's processes.
    """

    def _compile_builder(self, append_unknown: bool = True) -> _Builder:
        compiled = super()._compile_builder

        def build(rule: Rule, /, **values: Any) -> tuple[str, str]:
            return compiled(append_unknown)(rule, **values)

        return build


class App(Flask):
    """A Flask app for the API's routes."""

    url_rule_class = _Rule

    def __init__(self) -> None:
        super().__init__("bucketwire", static_folder=None)
