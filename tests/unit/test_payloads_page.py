"""The examples on the payloads page are what the targets get."""

from __future__ import annotations

import re
from pathlib import Path

from app.events.parsing import parse
from tests.support import sample_events
from workers.targets import messages, payloads

PAGE = (Path(__file__).parents[2] / "docs/reference/payloads.md").read_text()


def test_every_example_is_made_from_the_example_event() -> None:
    line, _ = next(iter(sample_events.captured()))
    (event,) = parse(line.encode(), {}, now_ms=0).events  # with the id that the service gives it
    blocks = [block.strip() for block in re.findall(r"```(?:json)?\n(.*?)```", PAGE, re.DOTALL)]
    record, event_id, *envelopes = blocks
    assert re.sub(r"\s", "", record) == re.sub(r"\s", "", event.record)
    assert event_id == event.id
    headers = "\n".join(f"{name}: {value}" for name, value in messages.binary_headers(event, messages.HTTP))
    made = [payloads.log(event), payloads.log(event, "guide"), messages.structured(event), headers]
    made += [payloads.records(event)]
    made += [payloads.redis_access(event), payloads.redis_access(event, "guide")]
    made += [payloads.elasticsearch_access(event, "guide").rstrip("\n")]
    assert envelopes == made
    assert f"`event_time` = `{payloads.timestamp(event)}`" in PAGE
