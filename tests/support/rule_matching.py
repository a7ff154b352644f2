"""What tests of the matching of rules have in common."""

from __future__ import annotations

import time
from collections.abc import Sequence

from app.config.arn import TargetId
from app.rules.matching import compile_rules
from app.rules.model import Rule

TARGET = TargetId("redis", "cache")
PUT, DELETE, HEAD = "s3:ObjectCreated:Put", "s3:ObjectRemoved:Delete", "s3:ObjectAccessed:Head"
Numbered = Sequence[tuple[Rule, int]]


def deep_match(made: bytes, key: bytes) -> bool:
    """Reference §2.2 word by word, backtracking and all."""
    while made:
        if made[:1] == b"*":
            return deep_match(made[1:], key) or (bool(key) and deep_match(made, key[1:]))
        if made[:1] == b"?":
            if not key:
                return True
        elif key[:1] != made[:1]:
            return False
        made, key = made[1:], key[1:]
    return not key


def fastest(rules: Numbered, events: Sequence[tuple[str, ...]]) -> float:
    """Seconds of the processor's time that all the events take, the best of several rounds."""
    matcher = compile_rules(rules)
    best = float("inf")
    for _ in range(7):
        start = time.thread_time()
        for bucket, key, *record in events:
            assert matcher.targets(bucket, PUT, key, *record)
        best = min(best, time.thread_time() - start)
    return best
