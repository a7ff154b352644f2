"""`bucketwire mcp` on this machine, without an API: every question has its answer, and no answer ends the server."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from app.cli.commands.mcp import TOOLS
from tests.integration.cli.conftest import Cli

GIVEN = {"bucket": "images", "key": "a", "target": "webhook:none", "id": "0" * 32}


@pytest.fixture
def asked(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What each tool answers."""
    return ask(cli, monkeypatch)


def ask(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    calls = [{"name": name, "arguments": {each: GIVEN[each] for each in tool.required}} for name, tool in TOOLS.items()]
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": call["name"], "method": "tools/call", "params": call}) for call in calls
    ]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    answers = [json.loads(line) for line in cli("mcp").out.splitlines()]
    return {answer["id"]: answer["result"] for answer in answers}


def test_every_tool_answers_from_the_outbox_of_this_machine(asked: dict[str, Any]) -> None:
    assert asked.keys() == TOOLS.keys()
    for name, result in asked.items():
        answer = json.loads(result["content"][0]["text"])
        assert answer.keys() == TOOLS[name].parts.keys(), name
        assert result["isError"] == (name in ("target", "event")), name  # there is none


def test_a_database_that_is_away_is_said_and_ends_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKETWIRE_DATABASE_URL", "postgresql://u:s3cret-pw@127.0.0.1:9/x")
    monkeypatch.setenv("BUCKETWIRE_DATABASE_TIMEOUT", "1s")
    asked = ask(cli, monkeypatch)
    assert asked.keys() == TOOLS.keys()
    text = asked["targets"]["content"][0]["text"]
    assert (asked["targets"]["isError"], "the outbox database is unavailable" in text) == (True, True)
    assert "s3cret-pw" not in text
