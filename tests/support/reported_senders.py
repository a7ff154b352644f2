"""Bodies that public reports and sources say senders post, and the events that each has to become."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from app.events.model import Event
from app.outbox import tables
from app.outbox.engine.database import Database

_FOLDER = Path(__file__).parents[1] / "fixtures" / "frontends" / "reports"
# Numbers go on from one to the next.
_REPORTS = ("2026-11.jsonl", "2026-11-issues.jsonl", "clouds.jsonl", "2026-11-public.jsonl")

PUT, DELETE = "s3:ObjectCreated:Put", "s3:ObjectRemoved:Delete"


class Fact(NamedTuple):
    """What an event is about: its name, bucket and key, version, and the size in its record."""

    name: str
    path: str
    version: str = ""
    size: int | None = None


# By line of the files, from 0. A text is a part of the refusal. Lines of the other files say themselves what is right.
RIGHT: dict[int, list[Fact] | str] = {
    0: [Fact(PUT, "weedold/a.txt", size=3)],
    1: [Fact(PUT, "weedold/a.txt", size=6)],
    2: [Fact("s3:ObjectCreated:PutTagging", "weedold/a.txt", size=6)],
    3: [Fact(PUT, "weedold/b.txt", size=1)],
    4: [Fact(PUT, "weedold/b.txt", size=2)],
    5: [Fact(PUT, "storj/a+b/c%2Bd.txt", "00aa11", 5)],
    6: [Fact(PUT, "storj/a+b/c%2Bd.txt", "00aa12", 6)],
    7: [],
    8: [Fact(DELETE, "storj/a+b/c%2Bd.txt", "00aa12")],
    9: [Fact(PUT, "vast/dir/f.bin", size=1048576)],
    10: [Fact(PUT, "ozone/a+b 100%.txt", size=1)],
    11: [Fact(PUT, "ozone/a+b.txt", size=1)],
    12: "Apache Ozone reports a volume",
    13: [Fact(PUT, "nautilus/c+d.txt", size=1024)],
    14: [Fact(PUT, "nautilus/c+d.txt", size=1024)],
    15: [Fact(PUT, "aws/w/5 (x).txt", size=1)],
    16: [Fact(PUT, "aws/w/6 (x).txt", size=1)],
    17: [Fact(PUT, "aws/w/7 (x).txt", size=1)],
    18: [Fact(PUT, "aws/w/8 (x).txt", size=1)],
    19: [Fact("s3:ObjectCreated:Copy", "ministack/a b.txt", size=3)],
    20: [Fact(DELETE, "ministack/a b.txt")],
    21: [Fact(DELETE, "powertools/f+g.txt")],
    22: "looks like a subscription of Amazon Security Lake",
    23: [Fact("s3:LifecycleExpiration:Delete", "expired/logs/1+2.gz")],
    24: [Fact(PUT, "bref/b.txt", size=4)],
    25: "looks like AWS CloudTrail's message about a log file",
    26: [Fact(PUT, "argo/in/a b.txt", size=5)],
    27: [Fact(DELETE, "argo/in/a b.txt")],
    28: 's3.object.key is ""',
    29: [Fact(PUT, "images/my photo.jpg", size=200436)],
    30: [Fact(PUT, "localstack/upload/valid.cos", "096fKKXTRTtl3on89fVO.nfljtsv6qko", 1024)],
    31: "has a stray %",
    32: [Fact(PUT, "emulated/a+b 100%.txt", size=1)],
    33: "data is not JSON",
    34: [Fact(PUT, "gs-cloudflare/gz/1.log.gz", size=7)],
    35: [Fact(PUT, "prepper/x y.log", size=8)],
    36: 's3.bucket.name is ""',
    37: "looks like a RustFS of before December 2025",
    38: 's3.object.key is ""',
}


def reports() -> list[dict[str, Any]]:
    """Return the lines of the files."""
    return [json.loads(line) for name in _REPORTS for line in (_FOLDER / name).read_text().splitlines()]


for _number, _report in enumerate(reports()):
    if _number not in RIGHT:
        _right = _report["right"]
        RIGHT[_number] = _right if isinstance(_right, str) else [Fact(*fact) for fact in _right]


def facts(events: Iterable[Event]) -> list[Fact]:
    """Return what events are about."""
    return [
        Fact(event.name, event.path, event.version, json.loads(event.record)["s3"]["object"].get("size"))
        for event in events
    ]


def logged_facts(database: Database) -> list[Fact]:
    """Return what the events in the log are about, in their order."""
    e = tables.events.c
    query = sa.select(e.name, e.bucket, e.key, e.version, e.record).order_by(e.seq)
    with database.reading() as connection:
        return [
            Fact(row.name, f"{row.bucket}/{row.key}", row.version, json.loads(row.record)["s3"]["object"].get("size"))
            for row in connection.execute(query)
        ]
