"""Append events that are for one target whatever the rules say, and for no other."""

from dataclasses import replace

import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.rules.matching import compile_rules
from app.rules.model import Rule


class AddressedLog(Log):
    """As `Log`, for one target; an event matches nothing where that target is gone or gets no events."""

    def __init__(self, database: Database, target: TargetId) -> None:
        super().__init__(database)
        self._target = target

    def _take(self, connection: sa.Connection, wanted: int) -> tuple[int, int]:
        taken = super()._take(connection, wanted)
        rule = Rule(bucket="*", events=("*",), target=self._target)
        chosen = [(rule, row_id) for row_id, target in self._routing.ids.items() if target == self._target]
        self._routing = replace(self._routing, matcher=compile_rules(chosen))
        return taken
