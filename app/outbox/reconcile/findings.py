"""Keep the first findings of each reconciliation in the outbox, for those who cannot read the report's folder."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.database import Database
from app.outbox.engine.locks import repeated_after_deadlock
from app.outbox.engine.many_rows import chunks
from app.outbox.policies import RECONCILIATIONS


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference. `facts` has the key, the object's properties and the row's (`row_…`), as in the report."""

    number: int
    kind: str
    facts: Mapping[str, Any]


@repeated_after_deadlock
def store_findings(database: Database, run: str, findings: Iterable[Mapping[str, Any]]) -> int:
    """Store the findings of a run in place of those that it has; return how many.

    They are at most `RECONCILIATIONS.max_findings`. Each has a `kind` and its other facts, which JSON can express.
    """
    rows = [
        # ASCII, so that every database takes whatever a key is.
        {"run": run, "number": number, "kind": facts["kind"], "facts": json.dumps(dict(facts))}
        for number, facts in zip(range(1, RECONCILIATIONS.max_findings + 1), findings, strict=False)
    ]
    with database.writing() as connection:
        connection.execute(tables.findings.delete().where(tables.findings.c.run == run))
        for some in chunks(rows):
            connection.execute(tables.findings.insert(), some)
    return len(rows)


def read_findings(
    database: Database, run: str, *, kind: str = "", limit: int = 100, after: int = 0
) -> Sequence[Finding]:
    """Return the first `limit` findings of a run with a number above `after`, those of a kind if one is given."""
    f = tables.findings.c
    query = sa.select(tables.findings).where(f.run == run, f.number > after).order_by(f.number).limit(limit)
    if kind:
        query = query.where(f.kind == kind)
    with database.reading() as connection:
        return [Finding(row.number, row.kind, orjson.loads(row.facts)) for row in connection.execute(query)]
