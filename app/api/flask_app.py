"""Flask without what the API has no use for and each process or request would pay for: addresses made of rules, which
the API and the console write themselves, and coroutines.
"""

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

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function: none is a coroutine, and to look for that takes as long as the function, for most."""
        return func
