"""A mirror in miniature: a courier with the mirror policy, and the rows that its target holds."""

from __future__ import annotations

import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.events.model import Effect, Event
from app.outbox import tables
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from tests.support.scripted_target import Courier, ScriptedTarget
from workers.delivery.namespace_policy import Policy


class Mirror(Courier):
    """A courier with the mirror policy, and the rows that its target holds."""

    def __init__(
        self, database: Database, target: TargetId, scripted: ScriptedTarget | None = None, batch: int = 10
    ) -> None:
        super().__init__(database, target, scripted or ScriptedTarget(), Policy.MIRROR, batch=batch)
        self.rows: dict[str, str] = {}
        self.arrived: list[Event] = []

    def deliver(self, *, turns: int = 100, now: int | None = None) -> dict[str, str]:
        """Work off what is due; each row as the version whose record it holds, or else its sequencer."""
        self.run(turns=turns, now=now)
        for one in self.scripted.got:
            thing = orjson.loads(one.record)["s3"]["object"]
            held = self.rows.get(one.key)
            if one.effect is Effect.UPSERT:
                self.rows[one.key] = thing.get("versionId") or thing["sequencer"]
            elif one.effect is Effect.REMOVE or (one.effect is Effect.REMOVE_VERSION and held == one.version):
                self.rows.pop(one.key, None)
        self.arrived += self.scripted.got
        self.scripted.got.clear()
        return dict(self.rows)

    def tell(self, *events: Event) -> dict[str, str]:
        """Record some events at once, and deliver them."""
        Log(self.database).append([list(events)])
        return self.deliver()

    def known(self) -> int:
        """How many rows say what is known of versioned keys, of any target."""
        with self.database.reading() as connection:
            return int(connection.execute(sa.select(sa.func.count()).select_from(tables.object_versions)).scalar_one())
