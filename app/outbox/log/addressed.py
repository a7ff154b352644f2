"""Append events for a single target, independent of the rules."""

from dataclasses import replace

import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.rules.matching import compile_rules
from app.rules.model import Rule


class AddressedLog(Log):
    """Like `Log`, but for one target; if the target is removed or disabled, events match nothing."""

    def __init__(self, database: Database, target: TargetId) -> None:
        super().__init__(database)
        self._target = target

    def _take(self, connection: sa.Connection, wanted: int) -> tuple[int, int]:
        taken = super()._take(connection, wanted)
        rule = Rule(bucket="*", events=("*",), target=self._target)
        chosen = [(rule, row_id) for row_id, target in self._routing.ids.items() if target == self._target]
        self._routing = replace(self._routing, matcher=compile_rules(chosen))
        return taken
